"""The README is short, its code runs as it stands there, and its figures are those that were measured."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path
from statistics import fmean

import pytest

pytest.importorskip("sklearn", reason="tables need the extra table")

from experiments.runs import ResultFile
from experiments.tsibench_report import PUBLISHED, verdicts
from gpytorch_sgpvae.datasets import sensor_table
from gpytorch_sgpvae.table import SGPVAEImputer, cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON, SHELL = (re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) for language in ("python", "sh"))


def table_rows(first_cell):
    """The cells of those rows of the README's tables whose first cell begins like this, as numbers."""
    rows = [line.strip("| ").split(" | ") for line in README.splitlines() if line.startswith(f"| {first_cell}")]
    return [[row[0], *(float(cell.strip("* ")) for cell in row[1:])] for row in rows]


def test_it_is_read_in_a_few_minutes():
    assert len(README.split()) < 1000


def test_the_first_example_fills_the_week_that_it_never_saw():
    picture = runpy.run_path(str(ROOT / "docs" / "unseen_week.py"))
    names = picture["run_example"]()
    new_week, truth = names["new_week"], names["truth"][30]
    hidden = new_week.isnan()
    assert hidden[20:45, 0].all()
    error = (names["mean"] - truth)[hidden].square().mean().sqrt()
    assert error < 0.1
    assert truth[hidden].square().mean().sqrt() > 0.6  # the error of knowing nothing
    inside = (names["lower"] <= truth) & (truth <= names["upper"])
    assert inside[hidden].float().mean() > 0.9
    assert len(picture["draw"](names).axes) == 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::gpytorch_sgpvae.table.TableWarning")  # after one epoch
def test_a_table_is_filled_in_python_and_by_the_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SGPVAEImputer.__init__.__kwdefaults__, "max_epochs", 1)
    sensors = sensor_table(num_days=20).table
    names = {"sensors": sensors}
    exec(compile(PYTHON[1], "README.md", "exec"), names)
    filled = names["filled"]
    assert sensors[["temperature", "wind"]].isna().any(axis=None)
    assert not filled[["temperature", "wind"]].isna().any(axis=None)
    assert (filled["wind_filled"] == sensors["wind"].isna()).all()
    assert not filled.loc[filled["wind_filled"], ["wind_std", "wind_lower", "wind_upper"]].isna().any(axis=None)

    sensors.to_csv("sensors.csv", index=False)
    commands = [shlex.split(line) for line in "".join(SHELL).splitlines() if line.startswith("sgpvae")]
    assert [command[1] for command in commands] == ["fit", "impute"]
    for command in commands:
        short = ["--max-epochs", "1", "--no-comparison"] if command[1] == "fit" else []
        assert cli.main([*command[1:], *short, "--quiet"]) == 0
    assert Path("filled.csv").exists()


class TestFigures:
    joint = json.loads((ROOT / "benchmarks" / "results" / "joint.json").read_text())
    windows = ResultFile("tsibench").read()
    holes = {f"{share} %": f"point{share}" for share in (10, 50, 90)} | {"runs": "subseq", "blocks": "block"}
    settings = re.findall(r"^\| ((?:ETTh1|ItalyAir|BeijingAir), [^|]*?) \|", README, re.MULTILINE)

    def scores(self, setting, model):
        name, _, holes = setting.partition(", ")
        variant = f"{name}-{self.holes[holes]}"
        return [
            result["scores"] for run, result in self.windows.items() if (run.model, run.variant) == (model, variant)
        ]

    def test_all_data_sets_of_windows_are_shown(self):
        assert {setting.partition(",")[0] for setting in self.settings} == {"ETTh1", "ItalyAir", "BeijingAir"}

    @pytest.mark.parametrize("setting", settings)
    def test_errors_and_seconds_of_windows_are_those_of_the_experiment(self, setting):
        [(_, *shown)] = table_rows(f"{setting} |")
        name, _, holes = setting.partition(", ")
        line, ours = (self.scores(setting, model) for model in ("interpolation", "windows"))
        assert shown == [
            round(fmean(scores["mae"] for scores in line), 3),
            PUBLISHED[f"{name}-{self.holes[holes]}"].network[0],
            round(fmean(scores["mae"] for scores in ours), 3),
            round(fmean(scores["processor_seconds"] for scores in ours)),
        ]

    @pytest.mark.parametrize("points", [48, 12])
    def test_steps_over_those_of_gpytorch_are_those_of_the_study(self, points):
        ratios = [goal["median"] for goal in self.joint["goals"] if goal["what"].startswith(f"N = {points}, ")]
        [(_, one, many)] = table_rows(f"{points} points")
        assert [one, many] == pytest.approx(ratios, abs=0.006)

    def test_a_step_on_a_million_points_takes_as_long_as_in_the_study(self):
        study = (ROOT / "benchmarks" / "results" / "markov.md").read_text()
        seconds = re.search(r"\| independent, K = 3 \| training step \| 1,000,000 \| ([\d.]+) s", study)[1]
        assert f"a million points takes {float(seconds):.1f} seconds" in README

    def test_one_preset_is_ahead_in_all_settings(self):
        assert "ahead of all 24 published networks in all fifteen settings" in README
        assert f"in {len(PUBLISHED)} of {len(PUBLISHED)} settings (reached" in verdicts(self.windows)[0]
        assert len(PUBLISHED) == 15

    def test_what_intervals_hold_is_that_of_the_experiment(self):
        coverage = [
            fmean(result["scores"]["coverage"] for run, result in self.windows.items() if run.row == row)
            for row in {run.row for run in self.windows if run.model == "windows"}
        ]
        lowest, highest = re.search(r"95 % intervals hold (\d+) to (\d+) %", README).groups()
        assert [int(lowest), int(highest)] == [round(100 * min(coverage)), round(100 * max(coverage))]


def test_what_the_readme_links_to_is_there():
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README)
    local = [target for target in targets if not target.startswith("http")]
    assert local
    assert all((ROOT / target).exists() for target in local)


def test_versions_are_those_of_the_package():
    pyproject = (ROOT / "pyproject.toml").read_text()
    python = re.search(r'requires-python = "(.*?)"', pyproject)[1]
    torch, gpytorch = (re.search(rf'"{name}(>=[\d.]+)"', pyproject)[1] for name in ("torch", "gpytorch"))
    bounds = f"Python {python}, torch {torch} and gpytorch {gpytorch}"
    assert bounds.replace(">=", ">= ") in README


def test_the_two_commands_are_there():
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test", "docs"):
        assert f"make {target}" in README
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
