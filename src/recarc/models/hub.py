"""Ensembles on the Hugging Face Hub: a repository is an ensemble folder with a model card.

`hf:user/name@REVISION` is loaded like a folder: only `ensemble.json` and safetensors files are fetched, and each is
checked like any other.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recarc import __version__
from recarc.errors import InputError, RecarcWarning, first_line
from recarc.models.store import FILE, save_ensemble

if TYPE_CHECKING:
    from recarc.ensemble import RandomizedEnsemble

PREFIX = "hf:"
WANTED = [FILE, "*.safetensors"]
_NAME = re.compile(r"hf:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
CARD = """---
library_name: recarc
tags: [adversarial-robustness, randomized-ensemble]
---

# {repo}

A randomized ensemble of classifiers: each query is answered by one member, drawn with the probabilities below.

{members}

```python
import recarc

ensemble = recarc.load_ensemble("hf:{repo}@REVISION")  # pin a commit of this repository
```

## How robust is it?

{verdict}

Made with recarc {version}; `ensemble.json` says how.
"""
NOT_MEASURED = "Not evaluated yet: `recarc evaluate hf:{repo} --data ... --eps ...` tells."


@cache
def snapshot(text: str) -> Path:
    """The local folder of `hf:user/name@REVISION`, from the cache of the Hub's library or from the network."""
    found = _NAME.fullmatch(text)
    if found is None:
        raise InputError(f"{text!r} is not of the form hf:user/name or hf:user/name@REVISION")
    repo, revision = found.groups()
    hub = _library()
    try:
        folder = Path(hub.snapshot_download(repo, revision=revision, allow_patterns=WANTED))
    except Exception as error:  # of many kinds: no network, no such repository, no access
        raise InputError(f"cannot get {text}: {first_line(error)}") from None
    if revision is None:
        warnings.warn(f"{text} is at {folder.name} now; pin it: {text}@{folder.name}", RecarcWarning, stacklevel=4)
    return folder


def push_to_hub(
    ensemble: RandomizedEnsemble,
    repo: str,
    *,
    result: Any = None,
    made_by: Mapping[str, Any] | None = None,
    private: bool = False,
) -> str:
    """Upload an ensemble as `user/name`, with the verdict of `result` (an `Evaluation`) in its model card.

    Returns `hf:user/name@COMMIT`, which `load_ensemble` takes.
    """
    if _NAME.fullmatch(PREFIX + repo) is None or "@" in repo:
        raise InputError(f"{repo!r} is not the name of a repository; expected user/name")
    hub = _library()
    with tempfile.TemporaryDirectory() as place:
        folder = save_ensemble(ensemble, Path(place) / "ensemble", made_by=made_by)
        (folder / "README.md").write_text(model_card(ensemble, repo, result), encoding="utf-8")
        try:
            api = hub.HfApi()
            api.create_repo(repo, private=private, exist_ok=True)
            commit = api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Ensemble of recarc")
        except Exception as error:
            raise InputError(f"cannot push to {repo}: {first_line(error)}") from None
    return f"{PREFIX}{repo}@{commit.oid}"


def model_card(ensemble: RandomizedEnsemble, repo: str, result: Any = None) -> str:
    """The README of a repository: the members and what an evaluation found."""
    rows = ["| member (from 0) | alpha | made of |", "|---|---|---|"]
    for i, (member, alpha) in enumerate(zip(ensemble.members, ensemble.alpha.tolist())):
        rows.append(f"| {i} | {alpha:.4g} | {getattr(getattr(member, 'spec', None), 'label', type(member).__name__)} |")
    verdict = NOT_MEASURED.format(repo=repo) if result is None else _measured(result)
    return CARD.format(repo=repo, members="\n".join(rows), verdict=verdict, version=__version__)


def _measured(result: Any) -> str:
    config = result.configuration
    ball, data = config["ball"], config["data"]
    lines = [
        f"| data | {data['name']} {data['split'] or ''}, {len(result)} samples |",
        f"| ball | {ball['norm']}, eps {ball['eps']} |",
        f"| clean accuracy | {result.clean} |",
        f"| **robust accuracy** | **{result.robust}** |",
        *([] if result.floor is None else [f"| floor | {result.floor} |"]),
    ]
    sentence = "" if result.verdict is None else f"\n\n{result.verdict.sentence}"
    return "\n".join(["| | |", "|---|---|", *lines]) + sentence


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise InputError("huggingface_hub is not installed: install recarc[hub]") from None
    return huggingface_hub
