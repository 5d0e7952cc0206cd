"""Two processes take the steps that one would take."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent.parent

SCRIPT = """
import sys
import torch
from pathlib import Path
from lightning.pytorch import Callback
from training_runs import Recorder, make_loader, make_module, make_quiet_trainer, make_tasks
from gpytorch_sgpvae.training import TaskDataset, TaskLoader

torch.set_num_threads(1)
folder, devices, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
tasks = make_tasks((7, 4, 9, 12, 5, 6, 8, 3, 10, 11, 6))  # 11: the last step has 3 of 4
if kind == "bad":
    tasks[5] = (tasks[5][0], tasks[5][1] * 1e200)
dataset = TaskDataset(tasks)
if kind == "windows":
    dataset = TaskDataset([tasks[3], tasks[9]]).windows(4, 2)  # 5 of each: the last step has 2 of 4, one for each


class Replicas(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        mine = torch.cat([parameter.detach().flatten() for parameter in pl_module.parameters()])
        everyones = trainer.strategy.all_gather(mine).reshape(devices, -1)
        assert torch.equal(everyones[0], everyones[-1])


module = make_module(hide=0.2, schedule="cosine")
recorder = Recorder()
trainer = make_quiet_trainer(
    folder, max_epochs=3, devices=devices, strategy="ddp" if devices > 1 else "auto", callbacks=[Replicas(), recorder],
    checkpoint_every=2, gradient_clip_val=50.0,
)
loader = TaskLoader(dataset, batch_size=4 // devices)
val_loader = make_loader(make_tasks(seed=3), batch_size=4 // devices, shuffle=False)
trainer.fit(module, loader, val_loader)
result = {
    "metrics": recorder.metrics,
    "batches": [[repr(id_) for id_ in ids] for _, _, ids in recorder.batches],
    "steps": trainer.global_step,
    "skipped": module.skipped_steps,
    "scores": {name: float(value) for name, value in trainer.callback_metrics.items()},
    "parameters": module.state_dict(),
}
torch.save(result, folder / f"{trainer.global_rank}.pt")
"""


def launch(folder, devices, kind="good", launcher=()):
    folder.mkdir(exist_ok=True)
    script = folder / "run.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}", "OMP_NUM_THREADS": "1"}
    command = [*(launcher or [sys.executable]), str(script), str(folder), str(devices), kind]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert result.returncode == 0, result.stderr
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(devices)], result.stderr


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    (result,), _ = launch(tmp_path_factory.mktemp("alone"), 1)
    return result


def assert_same_run(together, alone):
    first, second = together
    assert first["steps"] == second["steps"] == alone["steps"] == 9
    curves = [[metrics["train_elbo"] for metrics in run["metrics"]] for run in (first, second, alone)]
    assert curves[0] == pytest.approx(curves[2], rel=1e-6)
    assert curves[1] == pytest.approx(curves[2], rel=1e-6)
    for name in ("val_elbo", "val_mae", "val_nll", "val_coverage"):
        assert first["scores"][name] == pytest.approx(alone["scores"][name], rel=1e-6)
    for name, parameter in alone["parameters"].items():
        torch.testing.assert_close(first["parameters"][name], parameter, rtol=1e-6, atol=1e-9)


def test_two_processes_follow_the_elbo_curve_of_one(tmp_path, alone):
    """They do so in the last step of an epoch too, which has three tasks for four places."""
    together, _ = launch(tmp_path, 2)
    assert_same_run(together, alone)
    shares = [[len(ids) for ids in run["batches"]] for run in together]
    assert shares[0] == shares[1]


def test_two_processes_follow_the_elbo_curve_of_one_on_windows_too(tmp_path):
    (alone,), _ = launch(tmp_path / "alone", 1, "windows")
    together, _ = launch(tmp_path / "together", 2, "windows")
    assert_same_run(together, alone)
    for step, shares in zip(alone["batches"], zip(*(run["batches"] for run in together), strict=True), strict=True):
        assert sorted(shares[0] + shares[1]) == sorted(step)


def test_torchrun_starts_them_too_and_a_bad_task_on_one_of_them_is_skipped_by_both(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    together, errors = launch(tmp_path, 2, "bad", launcher)
    assert [run["skipped"] for run in together] == [3, 3]
    assert [run["steps"] for run in together] == [9, 9]
    assert all(value.isfinite().all() for name, value in together[0]["parameters"].items() if "bound" not in name)
    assert "is skipped" in errors
    assert "task 5: ExtremeNumberError" in errors  # its numbers are refused at the door
    assert "another process had to skip it" in errors
