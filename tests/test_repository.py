"""What a code host, an index and a package manager read, beside pyproject.toml: files that nothing else here runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import gpytorch_sgpvae

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which pytest brings along

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github/workflows").iterdir())
FORMS = sorted(set((ROOT / ".github/ISSUE_TEMPLATE").iterdir()) - {ROOT / ".github/ISSUE_TEMPLATE/config.yml"})
YAML = [
    *(ROOT / ".github").rglob("*.yml"),
    *(ROOT / "conda").glob("*.yaml"),
    ROOT / ".pre-commit-config.yaml",
    ROOT / "CITATION.cff",
]
# Extras for those who work on the package, which a package manager does not see.
FOR_DEVELOPERS = {"dev", "docs", "examples", "lint", "test", "tutorials"}
CONDA_NAMES = {"matplotlib": "matplotlib-base", "torch": "pytorch"}


def load(path: Path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def name(path: Path) -> str:
    return path.name


def jobs(path: Path) -> dict[str, dict]:
    return load(path)["jobs"]


def steps(path: Path) -> list[dict]:
    return [step for job in jobs(path).values() for step in job["steps"]]


@pytest.mark.parametrize("path", YAML, ids=name)
def test_a_file_of_yaml_can_be_read(path):
    class Loader(yaml.SafeLoader):
        """One that refuses what the usual one takes: a key that stands there twice."""

        def construct_mapping(self, node, deep=False):
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            assert len(keys) == len(set(keys)), f"{path} has a key twice: {keys}"
            return super().construct_mapping(node, deep)

    assert isinstance(yaml.load(path.read_text(encoding="utf-8"), Loader), dict)


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
class TestWorkflows:
    def test_actions_are_pinned_to_commits_with_their_versions_behind(self, path):
        uses = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))
        assert uses
        for action in uses:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+( #.*)?", action), action

    def test_it_may_do_no_more_than_it_must(self, path):
        assert load(path)["permissions"] in ({}, {"contents": "read"})
        granted = {job: content["permissions"] for job, content in jobs(path).items() if "permissions" in content}
        if path.name == "release.yml":
            assert granted == {
                "build": {"contents": "read"},
                "test": {},
                "publish": {"id-token": "write"},
                "announce": {"contents": "write"},
            }
        else:
            assert not granted
        for step in steps(path):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False

    def test_it_ends_and_does_not_run_twice_at_a_time(self, path):
        assert all(job["timeout-minutes"] for job in jobs(path).values())
        assert load(path)["concurrency"]["group"]

    def test_nothing_that_strangers_write_becomes_a_command(self, path):
        """A branch called "; rm -r /" would, if a workflow pasted its name into a line of shell."""
        assert not [step["run"] for step in steps(path) if "${{" in step.get("run", "")]

    def test_what_it_makes_is_in_the_makefile(self, path):
        for step in steps(path):
            for target in re.findall(r"\bmake ([a-z-]+)$", step.get("run", ""), re.MULTILINE):
                assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target

    def test_caches_go_with_the_files_that_name_the_versions(self, path):
        for step in steps(path):
            if (step.get("with") or {}).get("cache") == "pip":
                metadata, constraints = step["with"]["cache-dependency-path"].splitlines()
                assert metadata == "pyproject.toml"
                for which in ["oldest", "newest"]:
                    assert (ROOT / constraints.replace("${{ matrix.which }}", which)).is_file()


def test_an_action_has_one_version():
    found = {line for path in WORKFLOWS for line in re.findall(r"uses: (\S+ # v\S+)", path.read_text(encoding="utf-8"))}
    assert len(found) == len({line.partition("@")[0] for line in found}), found


def test_the_workflows_try_all_systems_and_the_oldest_and_newest_python():
    tests = jobs(ROOT / ".github/workflows/tests.yml")
    assert {job["runs-on"] for job in tests.values()} >= {"ubuntu-latest"}
    assert tests["systems"]["strategy"]["matrix"]["os"] == ["macos-latest", "windows-latest"]
    for version in tests["versions"]["strategy"]["matrix"]["include"]:
        assert f"PYTHON_{version['which'].upper()} ?= python{version['python']}\n" in MAKEFILE
        assert f"\ntest-{version['which']}:" in MAKEFILE
    install = next(step["run"] for step in tests["systems"]["steps"] if "pip install" in step.get("run", ""))
    extras = set(re.search(r"\[(.*)\]", install).group(1).split(","))
    assert extras == set(re.findall(r"\.venv/(\w+)\.installed", re.search("^test:.*", MAKEFILE, re.M)[0]))


def test_pypi_trusts_the_workflow_and_gets_attestations_after_the_tests():
    release = jobs(ROOT / ".github/workflows/release.yml")
    assert [release[job].get("needs") for job in ("build", "test", "publish", "announce")] == [
        None,
        "build",
        "test",
        "publish",
    ]
    publish = release["publish"]["steps"][-1]
    assert publish["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert publish["with"] == {"attestations": True}  # and no password
    assert "secrets." not in "".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)


@pytest.mark.parametrize("path", FORMS, ids=name)
def test_an_issue_form_has_what_the_host_asks_for(path):
    form = load(path)
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert fields
    assert all(field["type"] in {"input", "textarea", "dropdown", "checkboxes"} for field in fields)
    assert all(field["attributes"]["label"] for field in fields)
    identifiers = [field["id"] for field in fields]
    assert len(identifiers) == len(set(identifiers))
    assert any(field["validations"]["required"] for field in fields) or path.name == "idea.yml"


def test_dependabot_watches_actions_and_python_and_leaves_the_oldest_versions_alone():
    configuration = load(ROOT / ".github/dependabot.yml")
    assert configuration["version"] == 2
    updates = {update["package-ecosystem"]: update for update in configuration["updates"]}
    assert updates.keys() == {"github-actions", "pip"}
    assert updates["pip"]["exclude-paths"] == ["constraints-oldest.txt"]
    assert (ROOT / "constraints-oldest.txt").is_file()


def test_pre_commit_runs_the_versions_of_make_lint():
    repositories = load(ROOT / ".pre-commit-config.yaml")["repos"]
    hooks = {hook["id"]: (repository, hook) for repository in repositories for hook in repository["hooks"]}
    assert hooks.keys() == {"ruff-check", "ruff-format", "mypy"}
    assert f"ruff=={hooks['ruff-check'][0]['rev'].removeprefix('v')}\n" in (ROOT / "constraints.txt").read_text()
    assert hooks["mypy"][1]["entry"] == ".venv/bin/mypy"


def test_the_citation_has_what_the_format_asks_for_and_the_packages_version():
    citation = load(ROOT / "CITATION.cff")
    assert citation.keys() >= {"cff-version", "message", "title", "authors"}
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] in {"software", "dataset"}
    assert citation["version"] == gpytorch_sgpvae.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]
    assert citation["keywords"] == PROJECT["keywords"]
    (paper,) = citation["references"]
    assert paper.keys() >= {"type", "title", "authors"}
    assert paper["url"] in (ROOT / "README.md").read_text(encoding="utf-8")


class TestConda:
    RECIPE = load(ROOT / "conda/recipe.yaml")

    def test_it_is_the_same_package(self):
        oldest = PROJECT["requires-python"].removeprefix(">=")
        assert self.RECIPE["context"] == {"version": gpytorch_sgpvae.__version__, "python_min": oldest}
        assert self.RECIPE["package"]["name"] == PROJECT["name"]
        about = self.RECIPE["about"]
        assert (about["license"], about["summary"]) == (PROJECT["license"], PROJECT["description"])
        assert [about["license_file"]] == PROJECT["license-files"]
        commands = [f"{command} = {function}" for command, function in PROJECT["scripts"].items()]
        assert self.RECIPE["build"]["python"]["entry_points"] == commands

    def test_it_needs_the_same(self):
        needs = self.RECIPE["requirements"]
        python = "python >=${{ python_min }}"
        assert needs["run"] == [python, *map(conda, PROJECT["dependencies"])]
        assert set(map(conda, PYPROJECT["build-system"]["requires"])) <= set(needs["host"])

    def test_it_refuses_versions_that_are_too_old_for_the_extras(self):
        extras = [
            line
            for extra, lines in PROJECT["optional-dependencies"].items()
            for line in lines
            if extra not in FOR_DEVELOPERS and not line.startswith(PROJECT["name"])
        ]
        assert self.RECIPE["requirements"]["run_constraints"] == sorted(set(map(conda, extras)))


def conda(requirement: str) -> str:
    """A requirement of pip in the words of conda."""
    parsed = Requirement(requirement)
    return f"{CONDA_NAMES.get(parsed.name, parsed.name)} {parsed.specifier}"
