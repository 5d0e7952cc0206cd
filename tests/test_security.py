"""What SECURITY.md promises has a test, and nothing is sent to anybody."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from training_runs import make_loader, make_module, make_quiet_trainer, make_sgpvae, make_tasks

from gpytorch_sgpvae import Posterior, condition
from gpytorch_sgpvae.training import SGPVAEModule

ROOT = Path(__file__).parent.parent
NAMED = re.findall(r"^- `(tests/\S+\.py)::(\w+)`$", (ROOT / "SECURITY.md").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[name for _, name in NAMED])
def test_a_test_that_shows_a_promise_is_there(path, name):
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_every_promise_names_one():
    promises = (ROOT / "SECURITY.md").read_text(encoding="utf-8").split("## Promises")[1].split("## What is not")[0]
    sections = promises.split("\n### ")[1:]
    assert sections
    assert all("\n- `tests/" in section for section in sections)


def test_training_and_loading_open_no_connection(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError(f"a connection to {args}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    tasks = make_tasks()
    trainer = make_quiet_trainer(tmp_path, log="csv", max_epochs=1)
    trainer.fit(make_module(), make_loader(), make_loader(make_tasks(seed=3), shuffle=False), ckpt_path="last")
    loaded = SGPVAEModule.load_from_checkpoint(tmp_path / "last.ckpt", model=make_sgpvae())
    posterior = condition(loaded.model.model.eval(), tasks[0])
    assert Posterior.from_state_dict(loaded.model.model, posterior.state_dict())(tasks[1][0]).mean.isfinite().all()
