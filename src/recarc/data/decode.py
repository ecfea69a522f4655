"""Encoded image bytes -> uint8 pixels. Errors name the broken image."""

from __future__ import annotations

import io
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

from recarc.errors import InputError, first_line

if TYPE_CHECKING:
    from PIL.Image import Image

RESIZE, CROP = 256, 224  # ImageNet's usual evaluation transform
MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"}
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")  # Pillow knows some that start other programs
MOST_PIXELS = 2**26
GREY_MODES = {"1", "L", "LA"}


def open_image(data: bytes, name: str) -> Image:
    """The image with its header read and its pixels not yet decoded."""
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise _broken(name, error) from None
    if image.width * image.height > MOST_PIXELS:
        raise InputError(f"{name} is {image.width}x{image.height}; expected at most {MOST_PIXELS} pixels: resize it")
    if image.mode not in MODES:
        raise InputError(
            f"{name} has pixels of mode {image.mode}; expected 8 bits per channel: convert it to PNG or JPEG"
        )
    return image


def _convert(image: Image, channels: int, name: str) -> Image:
    from PIL import Image

    mode = "L" if channels == 1 else "RGB"
    try:
        image.load()
        return image if image.mode == mode else image.convert(mode)
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error) as error:
        raise _broken(name, error) from None
    except Image.DecompressionBombError as error:
        raise _broken(name, error) from None


def pixels(data: bytes, name: str, shape: tuple[int, int, int]) -> np.ndarray:
    """Pixels (C, H, W) of an image that must have exactly this shape."""
    channels, height, width = shape
    image = open_image(data, name)
    if image.size != (width, height):
        raise InputError(
            f"{name} is {image.width}x{image.height}; expected {width}x{height} like the others: resize it or remove it"
        )
    if channels == 1 and image.mode not in GREY_MODES:
        raise InputError(f"{name} is a colour image (mode {image.mode}); expected grey: convert it or remove it")
    return _planes(_convert(image, channels, name))


def cropped(data: bytes, name: str) -> np.ndarray:
    """Pixels (3, 224, 224): shorter side to 256 (bilinear), centre crop; an image of 224x224 is left unchanged."""
    from PIL import Image

    image = _convert(open_image(data, name), 3, name)
    if image.size != (CROP, CROP):
        width, height = image.size
        short = min(width, height)
        size = (RESIZE * width // short, RESIZE * height // short)
        if size[0] * size[1] > MOST_PIXELS:
            raise InputError(f"{name} is {width}x{height}; expected an image that can be cropped to a square")
        image = image.resize(size, Image.Resampling.BILINEAR)
        left, top = round((size[0] - CROP) / 2), round((size[1] - CROP) / 2)
        image = image.crop((left, top, left + CROP, top + CROP))
    return _planes(image)


def _planes(image: Image) -> np.ndarray:
    array = np.asarray(image, dtype=np.uint8)
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


def _broken(name: str, error: Exception) -> InputError:
    reason = first_line(error)
    reason = "not an image that Pillow can read" if reason.startswith("cannot identify") else reason
    return InputError(f"broken image {name}: {reason}; replace the file or remove it")
