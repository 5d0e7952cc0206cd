"""
Training that can be left alone: tasks of unequal length, checkpoints, several processes.

    python tutorials/train_and_resume.py                      # train, be killed, go on, and evaluate
    python tutorials/train_and_resume.py train runs/waves     # train, or go on with what is in the folder
    python tutorials/train_and_resume.py evaluate runs/waves  # how well it predicts tasks that it has never seen
    torchrun --nproc-per-node 2 tutorials/train_and_resume.py train runs/waves --devices 2
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from gpytorch_sgpvae import SGPVAE
from gpytorch_sgpvae.training import SGPVAEModule, TaskDataset, TaskLoader, make_trainer

TASKS_PER_STEP = 8


def make_tasks(num_tasks: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Waves of unequal length, seen through three sensors, with a fifth of the readings missing."""
    generator = torch.Generator().manual_seed(seed)
    tasks = []
    for length in torch.randint(10, 60, (num_tasks,), generator=generator).tolist():
        x = torch.rand(length, 1, generator=generator, dtype=torch.float64)
        f = torch.sin(2 * math.pi * (x + torch.rand((), generator=generator)))
        y = torch.cat([f, -f, f.square()], dim=-1)
        y = y + 0.1 * torch.randn(y.shape, generator=generator, dtype=y.dtype)
        tasks.append((x, y.masked_fill(torch.rand(y.shape, generator=generator) < 0.2, math.nan)))
    return tasks


def make_module() -> SGPVAEModule:
    torch.manual_seed(0)
    inducing_points = torch.linspace(0, 1, 10, dtype=torch.float64)
    sgpvae = SGPVAE(num_outputs=3, num_latents=1, inducing_points=inducing_points)
    return SGPVAEModule(sgpvae, learning_rate=1e-2, schedule="cosine", kl_warmup_steps=20, hide=0.25)


def train(folder: Path, num_epochs: int, num_devices: int = 1, checkpoint_every: int = 10) -> SGPVAEModule:
    module = make_module()
    batch_size = TASKS_PER_STEP // num_devices
    train_loader = TaskLoader(TaskDataset(make_tasks(64, seed=1)), batch_size, group_by_length=True)
    val_loader = TaskLoader(TaskDataset(make_tasks(16, seed=2)), batch_size, shuffle=False)
    trainer = make_trainer(
        folder,
        log="csv",
        checkpoint_every=checkpoint_every,
        max_epochs=num_epochs,
        log_every_n_steps=8,
        accelerator="cpu",
        devices=num_devices,
    )
    trainer.fit(module, train_loader, val_loader, ckpt_path="last")
    return module


def evaluate(folder: Path) -> None:
    module = SGPVAEModule.load_from_checkpoint(folder / "last.ckpt", model=make_module().model, weights_only=True)
    loader = TaskLoader(TaskDataset(make_tasks(32, seed=3)), TASKS_PER_STEP, shuffle=False)
    make_trainer(None, accelerator="cpu", devices=1).validate(module, loader)


def kill_and_go_on(num_epochs: int, seconds: float) -> None:
    """Train in another process, kill it, start it again, and compare with a run that nobody has touched."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, __file__, "train", str(folder / "killed"), "--epochs", str(num_epochs)]
        process = subprocess.Popen(command)
        while not (folder / "killed" / "last.ckpt").exists():
            if process.poll() is not None:
                raise SystemExit("The training ended before it had written a checkpoint.")
            time.sleep(0.05)
        time.sleep(seconds)
        process.kill()
        process.wait()
        print("\nKilled. Starting it again, with the same command.\n", flush=True)
        subprocess.run(command, check=True)
        print("\nAnother run, which is left in peace.\n", flush=True)
        train(folder / "untouched", num_epochs)
        parameters = [
            torch.load(folder / run / "last.ckpt", weights_only=True)["state_dict"] for run in ("killed", "untouched")
        ]
        same = all(torch.equal(*values) for values in zip(*(state.values() for state in parameters), strict=True))
        print(f"\nThe parameters of the two runs are {'equal, bit for bit' if same else 'different'}.\n", flush=True)
        evaluate(folder / "killed")
        if not same:
            raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["all", "train", "evaluate"], default="all", help="default: all")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs/waves"), help="default: %(default)s")
    parser.add_argument("--epochs", type=int, default=60, help="epochs of the training (default: %(default)s)")
    parser.add_argument("--devices", type=int, default=1, help="processes to train on (default: %(default)s)")
    parser.add_argument("--checkpoint-every", type=int, default=10, help="steps (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="from the first checkpoint to the kill")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "all":
        kill_and_go_on(arguments.epochs, arguments.seconds)
    elif arguments.what == "train":
        train(arguments.folder, arguments.epochs, arguments.devices, arguments.checkpoint_every)
    else:
        evaluate(arguments.folder)


if __name__ == "__main__":
    main()
