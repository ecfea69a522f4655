"""May this process go on with a run that another one began, or that it shares with others?"""

from __future__ import annotations

from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.evaluation.answers import Answers, changed_answers
from recarc.evaluation.checks import warn
from recarc.evaluation.configuration import Json, differences
from recarc.evaluation.folder import RunFolder


def check_answers(folder: RunFolder, ensemble: RandomizedEnsemble, answers: Answers) -> None:
    """Refuses members that answer the first samples otherwise than those that began the run."""
    changed = changed_answers(ensemble, folder.first_logits, answers)
    if changed:
        raise InputError(
            f"the members of {folder.path} answered the first samples differently ({'; '.join(changed)}): their "
            "code changed, or something they compute with; choose another folder"
        )


def check_rank(folder: RunFolder, told: Json, ensemble: RandomizedEnsemble, answers: Answers) -> None:
    """What this rank was given against what rank 0 was: the records of all go into one run."""
    found = differences(folder.configuration, told)
    found += [f"other answers of {phrase}" for phrase in changed_answers(ensemble, folder.first_logits, answers)]
    if found:
        raise InputError(
            f"the ranks do not evaluate the same: {found[0]} (there: rank 0); "
            "give every rank the same ensemble, attack, data and options"
        )


def compare_versions(folder: RunFolder, here: Json) -> None:
    """A word where the rest of a run will be made by other code than its beginning."""
    there = folder.run["environment"]
    if there.get("torch") != here["torch"]:
        warn(
            f"{folder.path} was begun with torch {there.get('torch')} and goes on with {here['torch']}; "
            "last bits may differ"
        )
    if any(there.get(key) != here[key] for key in ("recarc", "commit") if there.get(key) and here[key]):
        warn(
            f"{folder.path} was begun with recarc {_version(there)} and goes on with {_version(here)}; its attacks may "
            "have changed, so start again in another folder unless you know that they did not"
        )


def _version(environment: Json) -> str:
    commit = environment.get("commit")
    return f"{environment.get('recarc')}{f' (commit {commit[:9]})' if commit else ''}"
