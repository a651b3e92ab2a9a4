"""Models that are kept for a restart: files that come back whole, and damaged ones that do not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from evctl.control.kept_models import Identity, KeptModels
from evctl.core.costs import Coefficients
from tests.control.test_calibration import MODEL

IDENTITY = Identity("m", "w", "exact/1", "a cpu", "evengine 1", 1, True)


def kept(tmp_path: Path) -> tuple[KeptModels, list[str]]:
    warnings: list[str] = []
    return KeptModels(tmp_path / "times", warnings.append), warnings


def test_what_was_kept_comes_back_whole(tmp_path: Path) -> None:
    models, warnings = kept(tmp_path)
    assert models.read(IDENTITY) is None
    assert models.write(IDENTITY, MODEL, 1.0) == ""
    assert models.read(IDENTITY) == MODEL
    assert warnings == []
    (path,) = (tmp_path / "times").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("field", Identity.__struct_fields__)
def test_another_model_machine_or_engine_has_a_file_of_its_own(tmp_path: Path, field: str) -> None:
    models, warnings = kept(tmp_path)
    models.write(IDENTITY, MODEL, 1.0)
    other = msgspec.structs.replace(
        IDENTITY, **{field: {"ranks": 2, "context_term": False}.get(field, "other")}
    )
    assert models.read(other) is None
    assert warnings == []


@pytest.mark.parametrize(
    "change",
    [
        {"terms": {"c0": 1.0}},
        {"terms": None},
        {"format": 2},
        {"surprise": 1},
        {"residual": -1.0},
        {"unidentified": ["c9"]},
        {"experts_per_token": 8},
        {"context_tokens": 1e300},
        {"identity": {**msgspec.to_builtins(IDENTITY), "model": "other"}},
    ],
)
def test_a_file_that_says_other_things_is_ignored(
    tmp_path: Path, change: dict[str, object]
) -> None:
    models, warnings = kept(tmp_path)
    models.write(IDENTITY, MODEL, 1.0)
    (path,) = (tmp_path / "times").iterdir()
    values = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode({**values, **change}))
    assert models.read(IDENTITY) is None
    assert len(warnings) == 1
    assert str(path) in warnings[0]


@pytest.mark.parametrize("term", ["c1", "d0"])
@pytest.mark.parametrize("value", [-1e-3, 1e9, "NaN", None])
def test_a_term_that_cannot_be_is_ignored(tmp_path: Path, term: str, value: object) -> None:
    models, warnings = kept(tmp_path)
    models.write(IDENTITY, MODEL, 1.0)
    (path,) = (tmp_path / "times").iterdir()
    values = msgspec.json.decode(path.read_bytes())
    values["terms"][term] = value
    path.write_bytes(msgspec.json.encode(values))
    assert models.read(IDENTITY) is None
    assert len(warnings) == 1


def test_a_model_by_which_a_phase_takes_no_time_is_ignored(tmp_path: Path) -> None:
    models, warnings = kept(tmp_path)
    models.write(IDENTITY, Coefficients(*(0.0,) * 7, errors=(0.0,) * 8), 1.0)
    assert models.read(IDENTITY) is None
    assert "no time" in warnings[0]


def test_a_folder_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "times").write_text("a file")
    models, _ = kept(tmp_path)
    assert models.write(IDENTITY, MODEL, 1.0) != ""
