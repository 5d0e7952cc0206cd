from __future__ import annotations

from itertools import pairwise

import gpytorch
import helpers
import pytest
import torch
from lightning.pytorch import Callback
from torch.utils.data import DataLoader
from training_runs import (
    Recorder,
    assert_same_parameters,
    make_loader,
    make_module,
    make_quiet_trainer,
    make_sgpvae,
    make_tasks,
)

from gpytorch_sgpvae import GPVAE, VAE, Context, FactorNet, metrics
from gpytorch_sgpvae.training import SGPVAEModule, TaskDataset, collate_tasks


def fit(module, loader=None, val_loader=None, folder=None, **kwargs):
    trainer = make_quiet_trainer(folder, **{"max_epochs": 2, **kwargs})
    trainer.fit(module, make_loader() if loader is None else loader, val_loader)
    return trainer


def batch_of(tasks):
    dataset = TaskDataset(tasks)
    return collate_tasks([dataset[i] for i in range(len(tasks))])


class TestWhatItTrains:
    @pytest.mark.parametrize("kind", ["sgpvae", "gpvae", "vae", "joint", "sparse joint"])
    def test_every_ready_made_model(self, kind):
        model = {
            "sgpvae": make_sgpvae,
            "gpvae": lambda: GPVAE(3, 2).double(),
            "joint": lambda: GPVAE(3, 2, "jointfactornet", num_private=1).double(),
            "sparse joint": lambda: make_sgpvae(network="jointfactornet"),
            "vae": lambda: VAE(3, 2).double(),
        }[kind]()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        trainer = fit(SGPVAEModule(model), val_loader=make_loader(shuffle=False))
        assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
        assert {"train_elbo", "val_elbo", "val_mae", "val_nll", "val_coverage"} <= trainer.callback_metrics.keys()
        assert all(value.isfinite() for value in trainer.callback_metrics.values())

    def test_a_model_of_ones_own_with_a_decoder(self):
        model, likelihood = helpers.make_model(), helpers.make_likelihood()
        trainer = fit(SGPVAEModule(model, likelihood), val_loader=make_loader(shuffle=False))
        assert trainer.callback_metrics["val_mae"].isfinite()

    def test_a_model_of_ones_own_with_a_gaussian_likelihood_of_gpytorch(self):
        """One output, no latent dimension: its scores are those of the Gaussian."""
        model = helpers.make_model(num_outputs=1, num_latents=None)
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        tasks = [(x, y[:, 0]) for x, y in make_tasks()]
        module = SGPVAEModule(model, likelihood, validation_hide=0.5)
        trainer = fit(module, make_loader(tasks), make_loader(tasks, batch_size=7, shuffle=False), max_epochs=1)
        scores = trainer.callback_metrics
        assert all(scores[name].isfinite() for name in ("train_elbo", "val_elbo", "val_mae", "val_nll"))
        assert 0 <= scores["val_coverage"] <= 1

    def test_a_likelihood_without_a_gaussian_has_a_bound_and_no_scores(self):
        model = helpers.make_model(num_outputs=1, num_latents=None)
        tasks = [(x, (y[:, 0] > 0).double()) for x, y in make_tasks()]
        module = SGPVAEModule(model, gpytorch.likelihoods.BernoulliLikelihood().double())
        trainer = fit(module, make_loader(tasks), make_loader(tasks, shuffle=False), max_epochs=1)
        assert trainer.callback_metrics["val_elbo"].isfinite()
        assert "val_mae" not in trainer.callback_metrics

    @pytest.mark.filterwarnings("ignore:.*does not have many workers")
    def test_a_plain_data_loader_will_do(self):
        loader = DataLoader(TaskDataset(make_tasks()), batch_size=2, collate_fn=collate_tasks)
        assert fit(make_module(), loader).global_step == 8

    def test_a_model_that_was_in_eval_mode(self):
        module = make_module()
        module.eval()
        fit(module)
        assert all(part.training for part in module.modules())

    def test_chunks_change_nothing(self):
        modules = [make_module(), make_module(chunk_size=3)]
        for module in modules:
            fit(module, val_loader=make_loader(shuffle=False), max_epochs=1)
        assert_same_parameters(*modules, rtol=1e-7, atol=1e-9)

    def test_a_likelihood_is_given_exactly_where_it_is_missing(self):
        with pytest.raises(ValueError, match="does not bring a likelihood: pass likelihood="):
            SGPVAEModule(helpers.make_model())
        with pytest.raises(ValueError, match="brings its own likelihood"):
            SGPVAEModule(make_sgpvae(), helpers.make_likelihood())

    def test_an_unknown_schedule_is_an_error(self):
        with pytest.raises(ValueError, match="no schedule 'linear': choose \"cosine\""):
            make_module(schedule="linear")


class TestLoss:
    def test_it_is_the_sum_of_the_bounds_over_the_nominal_batch_size(self):
        module = make_module(num_samples=2)
        losses = []

        class Losses(Callback):
            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                losses.append((outputs["loss"], batch, batch_idx))

            def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
                with torch.no_grad():
                    expected.append(-pl_module.elbo(batch, num_samples=2).sum() / 3)

        expected = []
        fit(module, make_loader(batch_size=3), callbacks=[Losses()], max_epochs=1)
        # 7 tasks: the last batch has one, and counts as one third
        assert [len(batch.ids) for _, batch, _ in losses] == [3, 3, 1]
        torch.testing.assert_close(torch.stack([loss for loss, *_ in losses]), torch.stack(expected))

    def test_one_by_one_or_in_batches_is_the_same_training(self):
        """Seven tasks, of which the last batch of three has one: accumulated gradients count it the same."""
        together, one_by_one = make_module(hide=0.2), make_module(hide=0.2)
        fit(together, make_loader(batch_size=3, seed=5))
        fit(one_by_one, make_loader(batch_size=1, seed=5), accumulate_grad_batches=3)
        assert_same_parameters(together, one_by_one, rtol=1e-7, atol=1e-9)

    def test_tasks_of_weight_zero_have_no_part_in_it(self):
        dataset = TaskDataset(make_tasks())
        tasks = [dataset[0], dataset[1]._replace(weight=0.0)]
        gradients = []
        for batch in (collate_tasks(tasks), collate_tasks(tasks[:1])):
            module = make_module(batch_size=2)
            module.trainer = make_quiet_trainer(max_epochs=1)
            module._batch_size = 2
            module.log = lambda *args, **kwargs: None
            module.training_step(batch, 0).backward()
            gradients.append([p.grad for p in module.parameters()])
        for with_filler, without in zip(*gradients, strict=True):
            torch.testing.assert_close(with_filler, without, rtol=1e-9, atol=1e-12)

    def test_hyperpriors_count_once_over_all_tasks(self):
        sgpvae = make_sgpvae()
        prior = gpytorch.priors.GammaPrior(2.0, 3.0).double()
        kernel = sgpvae.model.covar_module.base_kernel
        module = SGPVAEModule(sgpvae)
        batch = batch_of(make_tasks())
        module._num_tasks = 7
        without = module.elbo(batch).sum()
        kernel.register_prior("lengthscale_prior", prior, "lengthscale")
        log_prior = prior.log_prob(kernel.lengthscale).sum()
        torch.testing.assert_close(module.elbo(batch).sum() - without, log_prior)

    def test_the_kl_divergence_is_warmed_up(self):
        recorder = Recorder()
        fit(make_module(kl_warmup_steps=3, beta=0.5), callbacks=[recorder], max_epochs=2)
        betas = [metrics_["beta"] for metrics_ in recorder.metrics]
        assert betas[:5] == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.5])

    def test_a_loader_that_tells_neither_size_is_asked_for_both(self):
        class Batches:
            def __iter__(self):
                return iter(make_loader())

            def __len__(self):
                return 4

        batches = Batches()
        with pytest.raises(ValueError, match=r"Batches does not tell its batch size: pass SGPVAEModule\(batch_size"):
            fit(make_module(), batches)
        with pytest.raises(ValueError, match=r"no dataset of known length: pass SGPVAEModule\(num_tasks"):
            fit(make_module(batch_size=2), batches)
        assert fit(make_module(batch_size=2, num_tasks=7), batches).global_step == 8


class TestOptimizer:
    def test_kernels_inducing_points_and_networks_have_rates_of_their_own(self):
        rates = {"hyperparameters": 0.3, "inducing_points": 0.2, "networks": 0.1}
        module = make_module(learning_rate=rates)
        trainer = fit(module, max_epochs=1)
        groups = {group["name"]: group for group in trainer.optimizers[0].param_groups}
        assert {name: group["lr"] for name, group in groups.items()} == rates
        names = {parameter: name for name, parameter in module.named_parameters()}
        members = {key: {names[parameter] for parameter in group["params"]} for key, group in groups.items()}
        assert members["hyperparameters"] == {
            name for name in names.values() if "covar_module" in name or "noise" in name
        }
        assert members["inducing_points"] == {name for name in names.values() if name.endswith("inducing_points")}
        assert all("network" in name or "decoder" in name for name in members["networks"])
        assert sum(map(len, members.values())) == len(names)

    def test_a_rate_that_is_missing_is_an_error(self):
        with pytest.raises(ValueError, match="one for each of hyperparameters, inducing_points, networks, got"):
            fit(make_module(learning_rate={"networks": 0.1}))

    def test_cosine_starts_with_the_warm_up_and_ends_at_zero(self):
        rates = []

        class Rates(Callback):
            def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
                rates.append(trainer.optimizers[0].param_groups[0]["lr"])

        trainer = fit(make_module(schedule="cosine", lr_warmup_steps=3), callbacks=[Rates()])
        assert rates[:4] == pytest.approx([0.0025, 0.005, 0.0075, 0.01])
        assert all(late < early for early, late in pairwise(rates[3:]))
        assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)

    def test_a_schedule_of_ones_own_is_told_the_number_of_steps(self):
        seen = []

        def schedule(optimizer, num_steps):
            seen.append(num_steps)
            return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=num_steps)

        trainer = fit(make_module(schedule=schedule))
        assert seen == [8]
        assert isinstance(trainer.lr_scheduler_configs[0].scheduler, torch.optim.lr_scheduler.OneCycleLR)

    def test_a_schedule_without_an_end_is_an_error(self):
        with pytest.raises(ValueError, match="give the Trainer max_epochs or max_steps"):
            fit(make_module(schedule="cosine"), max_epochs=-1, max_steps=-1)


class TestValidation:
    def test_scores_are_those_of_hidden_entries_over_all_batches(self):
        """They equal the metrics of the whole set in one batch, with the same entries hidden."""
        tasks = make_tasks()
        sums = []
        for batch_size in (1, 3, 7):
            trainer = make_quiet_trainer()
            module = make_module(validation_hide=0.4, validation_samples=20)
            sums.append(trainer.validate(module, make_loader(tasks, batch_size, shuffle=False), verbose=False)[0])
        for name in ("val_elbo", "val_mae", "val_nll", "val_coverage"):
            assert sums[0][name] == pytest.approx(sums[1][name], rel=1e-9)
            assert sums[0][name] == pytest.approx(sums[2][name], rel=1e-9)

    def test_they_are_the_metrics_of_a_prediction(self, monkeypatch):
        seen = {}
        from gpytorch_sgpvae.training import sgpvae_module

        def spy(model, likelihood, x, context, base_samples, chunk_size):
            seen["context"], seen["x"], seen["samples"] = context, x, base_samples
            return original(model, likelihood, x, context, base_samples, chunk_size)

        original = sgpvae_module.predict_hidden
        monkeypatch.setattr(sgpvae_module, "predict_hidden", spy)
        module = make_module(validation_hide=0.4, validation_samples=20)
        loader = make_loader(batch_size=7, shuffle=False)
        scores = make_quiet_trainer().validate(module, loader, verbose=False)[0]
        whole = next(iter(loader)).context
        hidden = whole.observed & ~seen["context"].observed
        assert 0.2 < hidden.sum() / whole.observed.sum() < 0.6
        sgpvae = module.model.eval()
        with torch.inference_mode():
            q_f = sgpvae.model(seen["x"], context=seen["context"])
            prediction = sgpvae.likelihood.predict(q_f, base_samples=seen["samples"])
        truth = torch.where(hidden, whole.filled, torch.nan)
        count = hidden.sum((0, 1))
        for name in ("mae", "nll", "coverage"):
            expected = (getattr(metrics, name)(prediction, truth) * count).sum() / count.sum()
            assert scores[f"val_{name}"] == pytest.approx(expected.item(), rel=1e-9)

    def test_scores_can_be_in_the_original_units(self):
        loader = make_loader(shuffle=False)
        plain = make_quiet_trainer().validate(make_module(), loader, verbose=False)[0]
        module = make_module(rescale=(torch.full((3,), 5.0), torch.full((3,), 10.0)))
        scaled = make_quiet_trainer().validate(module, loader, verbose=False)[0]
        assert scaled["val_mae"] == pytest.approx(10 * plain["val_mae"])
        assert scaled["val_nll"] == pytest.approx(plain["val_nll"] + torch.tensor(10.0).log().item())
        assert scaled["val_coverage"] == pytest.approx(plain["val_coverage"])

    def test_validation_has_no_part_in_the_training(self):
        with_validation, without = make_module(), make_module()
        fit(with_validation, val_loader=make_loader(shuffle=False))
        fit(without)
        assert_same_parameters(with_validation, without)

    def test_nothing_hidden_is_nothing_scored(self):
        module = make_module(validation_hide=0.0)
        scores = make_quiet_trainer().validate(module, make_loader(shuffle=False), verbose=False)[0]
        assert set(scores) == {"val_elbo"}


class TestRandomNumbers:
    def test_they_do_not_depend_on_torchs_generator_and_leave_it_alone(self):
        runs = []
        for seed in (1, 2):
            module = make_module(hide=0.3)
            torch.manual_seed(seed)
            fit(module)
            runs.append(module)
        assert_same_parameters(*runs)
        batch, module = batch_of(make_tasks()), runs[0]
        before = torch.get_rng_state()
        module.elbo(batch, hide=0.3)
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_network_that_drops_units_is_seeded_too(self):
        class Dropping(FactorNet):
            def forward(self, context):
                return super().forward(context.map_outputs(torch.nn.functional.dropout))

        sgpvae = make_sgpvae(network=Dropping(3, 2))
        module, batch = SGPVAEModule(sgpvae), batch_of(make_tasks())
        torch.testing.assert_close(module.elbo(batch), module.elbo(batch), rtol=0, atol=0)
        other = module.elbo(batch._replace(seeds=[seed + 1 for seed in batch.seeds]))
        assert not torch.equal(module.elbo(batch), other)


def test_what_is_watched_is_what_the_model_has():
    module = make_module()
    recorder = Recorder()
    trainer = fit(module, callbacks=[recorder], max_epochs=1)
    sgpvae = module.model
    names = trainer.callback_metrics.keys()
    assert {"noise", "lengthscale_min", "lengthscale_max", *(f"lengthscale_{i}" for i in range(4))} <= names
    assert {"train_elbo", "noise", "lengthscale_min", "lengthscale_max"} <= trainer.progress_bar_metrics.keys()
    fresh = module._summary()
    assert fresh["noise"] == sgpvae.likelihood.observation_model.noise.mean()
    assert fresh["lengthscale_max"] == sgpvae.model.covar_module.base_kernel.lengthscale.max()


def test_the_elbo_is_per_observed_value():
    module = make_module(num_samples=2)
    recorder = Recorder()
    batch = next(iter(make_loader(batch_size=7)))
    expected = module.elbo(batch, num_samples=2).sum() / Context(batch.x, batch.y).observed.sum()
    fit(module, make_loader(batch_size=7), callbacks=[recorder], max_epochs=1)
    assert recorder.metrics[0]["train_elbo"] == pytest.approx(expected.item())
