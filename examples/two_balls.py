"""
Two bouncing balls: a sparse GP-VAE sees the beginning of a video with holes and predicts the rest, as in
https://arxiv.org/abs/2010.10177.

    python examples/two_balls.py --output two_balls.png
"""

from __future__ import annotations

import argparse

import gpytorch
import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from torch import Tensor
from torch.distributions import Normal
from tqdm import trange

from gpytorch_sgpvae import MLP, SGPVAE, Context, FactorNet, GaussianObservations, Prediction
from gpytorch_sgpvae.datasets import BouncingBalls, bouncing_balls, estimate_periods
from gpytorch_sgpvae.plotting import plot_latents

NUM_LATENTS = 2


def main() -> None:
    arguments = parse_arguments()
    # A second thread is worth a fifth of the time where a core is free for it, and costs a hundredfold where none is.
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    generator = torch.Generator().manual_seed(arguments.seed)
    train_set = bouncing_balls(arguments.train_videos, arguments.steps, arguments.pixels, generator=generator)
    test_set = bouncing_balls(arguments.test_videos, arguments.steps, arguments.pixels, generator=generator)

    model = make_model(train_set, arguments.inducing_every)
    fit(model, train_set, arguments.iterations, arguments.batch_size)

    prefix = arguments.prefix
    seen = Context(test_set.x[:prefix], test_set.y[:, :prefix])
    prediction = model.eval().predict(test_set.x, seen, num_samples=50)
    print_table(prediction, train_set, test_set, prefix)
    draw(prediction, test_set, prefix, model.strategy.inducing_points, arguments.output)
    print(f"The picture is in {arguments.output}.")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="two_balls.png", help="file of the picture (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the videos and of the training (default: %(default)s)"
    )
    parser.add_argument("--train-videos", type=int, default=64, help="videos to train on (default: %(default)s)")
    parser.add_argument("--test-videos", type=int, default=20, help="videos to predict (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=400, help="images in a video (default: %(default)s)")
    parser.add_argument("--pixels", type=int, default=40, help="pixels in an image (default: %(default)s)")
    parser.add_argument("--prefix", type=int, default=250, help="images seen of a test video (default: %(default)s)")
    parser.add_argument("--inducing-every", type=int, default=10, help="steps between them (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=3000, help="optimizer steps (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=4, help="videos per optimizer step (default: %(default)s)")
    return parser.parse_args()


def make_model(train_set: BouncingBalls, inducing_every: int) -> SGPVAE:
    num_pixels = train_set.y.shape[-1]
    kernel = gpytorch.kernels.PeriodicKernel(batch_shape=torch.Size([NUM_LATENTS]))
    # A latent function of its own period for each ball.
    kernel.period_length = estimate_periods(train_set.y, NUM_LATENTS).view(NUM_LATENTS, 1, 1)
    # The latents start as near sinusoids: with more harmonics they settle on functions that pass a value several times
    # on a ball's way from the floor to the top, which no decoder can undo.
    kernel.lengthscale = 10.0
    model = SGPVAE(
        num_outputs=num_pixels,
        num_latents=NUM_LATENTS,
        inducing_points=train_set.x[::inducing_every],
        # Vague at first, as most pixels show no ball and should have little to say.
        network=FactorNet(num_pixels, NUM_LATENTS, hidden_sizes=(32,), initial_stddev=3.0),
        kernel=kernel,
        decoder=MLP(NUM_LATENTS, num_pixels, hidden_sizes=(128, 128)),
        observation_model=GaussianObservations(num_pixels, shared_noise=True),
        learn_inducing_locations=False,
    )
    model.likelihood.observation_model.noise = 0.02
    return model


def fit(model: SGPVAE, train_set: BouncingBalls, num_iterations: int, batch_size: int) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-2, total_steps=num_iterations, pct_start=0.1)
    progress = trange(num_iterations, desc="training", mininterval=1.0)
    with gpytorch.settings.num_likelihood_samples(1):
        for iteration in progress:
            videos = torch.randperm(len(train_set.y))[:batch_size]
            context = Context(train_set.x, train_set.y[videos])
            elbo = model.elbo(context).sum() / context.observed.sum()
            optimizer.zero_grad()
            (-elbo).backward()
            optimizer.step()
            scheduler.step()
            if iteration % 20 == 0:
                progress.set_postfix_str(f"ELBO per observed pixel {elbo.item():.3f}", refresh=False)


def pixel_means(train_set: BouncingBalls, shape: torch.Size) -> Normal:
    """Baseline: each pixel as it is on average."""
    mean = train_set.y.nanmean((0, 1))  # (P,)
    variance = (train_set.y - mean).square().nanmean((0, 1))
    return Normal(mean.expand(shape), variance.sqrt().expand(shape))


def last_frame(train_set: BouncingBalls, test_set: BouncingBalls, prefix: int) -> Normal:
    """Baseline: each pixel stays what it last was, with the errors that this makes in the training videos."""
    default = train_set.y.nanmean((0, 1))
    residuals = train_set.y - carry_forward(train_set.y, prefix, default)
    stddev = residuals[:, prefix:].square().nanmean((0, 1)).sqrt()  # (P,)
    mean = carry_forward(test_set.y, prefix, default)  # (T, N, P)
    return Normal(mean, stddev.expand_as(mean))


def carry_forward(y: Tensor, prefix: int, default: Tensor) -> Tensor:
    """The last value of each pixel observed so far, and not after the prefix; `default` before the first one."""
    steps = torch.arange(1, y.shape[-2] + 1).unsqueeze(-1)  # (N, 1)
    known = ~y.isnan() & (steps <= prefix)
    last = torch.where(known, steps, 0).cummax(-2).values  # (T, N, P), 0 before the first observation
    with_default = torch.cat([default.expand_as(y[:, :1]), y], dim=-2)  # (T, 1 + N, P)
    return with_default.gather(-2, last)


def print_table(prediction: Prediction, train_set: BouncingBalls, test_set: BouncingBalls, prefix: int) -> None:
    y, truth = test_set.y, test_set.truth
    means, frame = pixel_means(train_set, truth.shape), last_frame(train_set, test_set, prefix)
    mixture = f"{-prediction.log_prob(y)[:, prefix:].nanmean():.3f}"
    rows = [
        ("SGP-VAE", prediction.mean, prediction.gaussian_log_prob(y), mixture),
        ("pixel means", means.mean, gaussian_log_prob(means, y), ""),
        ("last frame", frame.mean, gaussian_log_prob(frame, y), ""),
    ]
    print(f"{len(y)} unseen videos of {y.shape[-2]} images, {y.isnan().float().mean():.0%} of the pixels gone:")
    print(f"{'':12} {'MAE until':>12} {'MAE after':>12} {'NLL after':>12} {'NLL after':>12}")
    print(f"{'':12} {f'image {prefix}':>12} {f'image {prefix}':>12} {'(Gaussian)':>12} {'(mixture)':>12}")
    for name, mean, log_prob, mixture_nll in rows:
        error = (mean - truth).abs()
        seen, ahead, nll = error[:, :prefix].mean(), error[:, prefix:].mean(), -log_prob[:, prefix:].nanmean()
        print(f"{name:12} {seen:12.4f} {ahead:12.4f} {nll:12.3f} {mixture_nll:>12}")
    print("MAE: mean absolute error of the noiseless pixels. NLL: nats per observed, noisy pixel.")


def gaussian_log_prob(gaussian: Normal, y: Tensor) -> Tensor:
    """NaN where y is NaN, as of a :class:`~gpytorch_sgpvae.Prediction`."""
    return gaussian.log_prob(torch.where(y.isnan(), gaussian.mean, y)).masked_fill(y.isnan(), torch.nan)


def draw(prediction: Prediction, test_set: BouncingBalls, prefix: int, inducing_points: Tensor, output: str) -> None:
    """The first of the test videos."""
    figure, (top, middle, bottom) = plt.subplots(3, 1, figsize=(12, 8), sharex=True, layout="constrained")
    for axes, images, title in (
        (top, test_set.truth[0], "The video, without noise and holes"),
        (middle, prediction.mean[0], "Predictive mean, given noisy images with holes up to the red line"),
    ):
        axes.imshow(images.mT, cmap="gray", vmin=0, vmax=1, aspect="auto", origin="lower", interpolation="nearest")
        axes.set(title=title, ylabel="pixel")
    plot_latents(test_set.x, prediction, inducing_points, task=0, axes=bottom)
    bottom.set(title="Latent functions: posterior mean and 95 % band", xlabel="image")
    for axes in (middle, bottom):
        axes.axvline(prefix - 0.5, color="red", linewidth=2)
    figure.savefig(output, dpi=100)


if __name__ == "__main__":
    main()
