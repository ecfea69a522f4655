"""The architectures, one per file: `NAME.py` holds `make(classes, channels, image_size, *, options)`.

The file's name is the architecture's name; nothing else has to be registered. See `recarc.models.registry`.
"""
