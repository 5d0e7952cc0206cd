from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..models import window_model
from ..utils.normalizer import Normalizer
from ..utils.seeds import derive_seed, seeded
from ..utils.tensor_files import check_finite, read_tensors, write_tensors
from .learning import LEARNING_RATE, moments, train, usual_batch_size
from .sets import WindowSet, read_windows

# Windows that the start is found from.
NUM_FIRST = 200
# The file format; to be raised when older versions could no longer read what is written.
KIND, FORMAT = "gpytorch_sgpvae.windows", 1
# What the names of the model's tensors begin with, there.
MODEL = "model."
# Fewer hidden entries of an output do not tell how wide its intervals should be.
FEWEST_ENTRIES = 20


class Validation(NamedTuple):
    """
    :param X: Windows with hidden entries (`T x N x P`).
    :param X_ori: The windows before (`T x N x P`).
    """

    X: Tensor
    X_ori: Tensor


class WindowImputer:
    r"""
    Fills windows of time series by the convention of `PyPOTS`_, in the place of `pypots.imputation.SAITS` and the like:
    the same dictionaries with the keys `X` and `X_ori`, the same methods, NumPy arrays of the same shapes back, and
    with every filled value an interval. It needs no PyPOTS.

    The model is the linear one of :func:`~gpytorch_sgpvae.models.window_model`, whose posterior is exact for any
    pattern of holes. A window of N steps and P features with the known entries :math:`\mathbf y^o` is filled by

    .. math::

        \hat y_{np} = \mathbb E [ y_{np} \mid \mathbf y^o ], \qquad
        \hat y_{np} \pm 1.96 \, \sqrt{c_p \, \mathrm{Var} [ y_{np} \mid \mathbf y^o ]}

    Features are standardized within, and results are in the units of the data. The factors :math:`c_p` are 1, or with
    a validation set the mean squared standardized error of its hidden entries.

    The arguments have PyPOTS' names, and those that its neural networks have besides (`d_model`, `n_layers`) have no
    counterpart.

    :param n_steps: Number of steps N of a window.
    :param n_features: Number of features P.
    :param n_latents: Number of latent functions that all features share, by default 4 P, at most 32.
    :param periods: Periods of cycles, in steps: `[24]` for hours.
    :param batch_size: Windows in a training step; by default 16, or fewer if they have more than 1000 entries.
    :param epochs: Rounds over the training windows; by default as many as make about 400 steps, which are enough for
        most data.
    :param patience: With a validation set, the number of epochs without a better score after which training stops.
    :param learning_rate: The learning rate of Adam at the start; it falls to zero along a cosine.
    :param seed: Seed of everything random: the order of the windows, and draws.
    :param device: By default CUDA where there is some, else the CPU.
    :param verbose: Whether to print a line for each epoch.

    :ivar model: The model, an :class:`~gpytorch_sgpvae.AmortizedModel` in standardized units.
    :ivar history: For each epoch the training loss, an entry's, and with a validation set the mean squared error of its
        hidden entries in standardized units, a list of dictionaries.

    Example:
        >>> import numpy as np
        >>> from gpytorch_sgpvae.windows import WindowImputer
        >>> random = np.random.default_rng(0)
        >>> X_ori = random.standard_normal((40, 12, 2)).cumsum(1)
        >>> X = np.where(random.random(X_ori.shape) < 0.2, np.nan, X_ori)
        >>> imputer = WindowImputer(n_steps=12, n_features=2, epochs=1)
        >>> imputer.fit({"X": X[:30]}, {"X": X[30:], "X_ori": X_ori[30:]})
        >>> imputer.impute({"X": X[30:]}).shape
        (10, 12, 2)
        >>> sorted(imputer.predict({"X": X[30:]}))
        ['imputation', 'lower', 'reconstruction', 'std', 'upper']

    .. _PyPOTS:
        https://docs.pypots.com
    """

    def __init__(
        self,
        n_steps: int,
        n_features: int,
        n_latents: int | None = None,
        periods: Sequence[float] = (),
        batch_size: int | None = None,
        epochs: int | None = None,
        patience: int | None = None,
        learning_rate: float = LEARNING_RATE,
        seed: int = 0,
        device: str | torch.device | None = None,
        verbose: bool = False,
    ):
        for name, value in (("batch_size", batch_size), ("epochs", epochs), ("patience", patience)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        self.n_steps = n_steps
        self.n_features = n_features
        self.n_latents = n_latents
        self.periods = tuple(periods)
        self.batch_size = batch_size or usual_batch_size(n_steps, n_features)
        self.epochs = epochs
        self.patience = patience
        self.learning_rate = learning_rate
        self.seed = seed
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.verbose = verbose
        self.history: list[dict[str, float]] = []
        with seeded(derive_seed("window_imputer", seed)):
            self.model = window_model(n_steps, n_features, n_latents, periods).to(self.device, torch.float64).eval()
        self._normalizer: Normalizer | None = None
        self._factors = torch.ones(n_features, dtype=torch.float64, device=self.device)

    def fit(self, train_set: WindowSet, val_set: WindowSet | None = None, file_type: str = "hdf5") -> None:
        """
        Learn from windows with holes. Given a validation set, keep the parameters that impute its hidden entries best,
        and make intervals as wide as these demand.

        :param train_set: A dictionary with `X` (`n_samples x n_steps x n_features`; an array, a tensor or lists),
            NaN where something is missing, or the path of an HDF5 file that has it. Other keys are not read: nothing
            needs to be hidden for the training.
        :param val_set: The same with `X_ori` as well, the windows before entries of `X` were hidden.
        :param file_type: Type of the files, if there are any: `"hdf5"`.
        """
        [X] = self._read(train_set, "train_set", file_type)
        if X.isnan().all():
            raise ValueError(f"train_set['X'], of shape {tuple(X.shape)}, has no known entry to learn from.")
        validation = None
        if val_set is not None:
            validation = Validation(*self._read(val_set, "val_set", file_type, "X", "X_ori"))
            if not (validation.X.isnan() & ~validation.X_ori.isnan()).any():
                raise ValueError("Nothing is hidden in val_set: expected NaN in X where X_ori has values.")
        self._normalizer = Normalizer.fit([X.flatten(0, 1)])
        self._factors = torch.ones_like(self._factors)
        windows = self._normalizer.normalize(X)
        with seeded(derive_seed("window_imputer", self.seed), self.device):
            fresh = window_model(self.n_steps, self.n_features, self.n_latents, self.periods)
            self.model = fresh.to(self.device, torch.float64)
            self.model.initialize_from((self._x, windows[:NUM_FIRST]), lengthscales=False)
            self.history = train(
                self.model,
                self._x,
                windows,
                self.batch_size,
                self.epochs,
                self.patience,
                self.learning_rate,
                self.verbose,
                None if validation is None else lambda: self._errors(validation)[0].square().nanmean().item(),
            )
        if validation is not None:
            self._calibrate(validation)

    def predict(
        self,
        test_set: WindowSet,
        file_type: str = "hdf5",
        level: float = 0.95,
        n_sampling_times: int | None = None,
    ) -> dict[str, np.ndarray]:
        """
        Fill windows: arrays in single precision, as PyPOTS has them, each `n_samples x n_steps x n_features`:

        - `imputation`: what was known, and the mean of what was not; or, with `n_sampling_times`, as of PyPOTS'
          probabilistic models, that many draws of whole windows, `n_samples x n_sampling_times x n_steps x
          n_features`, which its `calc_quantile_crps` takes;
        - `reconstruction`: the mean of all entries, also where something was known;
        - `std`: the standard deviation of what was filled, 0 where a value was known;
        - `lower` and `upper`: the ends of an interval, which are the value itself where it was known.

        :param test_set: As for :meth:`fit`; only `X` is read.
        :param file_type: Type of the file, if it is one: `"hdf5"`.
        :param level: Probability of the interval.
        :param n_sampling_times: How many draws there are in `imputation` instead of the mean.
        """
        if not 0 < level < 1:
            raise ValueError(f"Expected a level strictly between 0 and 1, got {level}.")
        if n_sampling_times is not None and n_sampling_times < 1:
            raise ValueError(f"n_sampling_times must be at least 1, or None for the mean, got {n_sampling_times}.")
        [X] = self._read(test_set, "test_set", file_type)
        normalizer = self._fitted
        mean, stddev = self._moments(normalizer.normalize(X))
        known = ~X.isnan()
        reconstruction = normalizer.denormalize(mean)
        imputation = torch.where(known, X, reconstruction)
        std = torch.where(known, 0.0, normalizer.stddev * self._factors.sqrt() * stddev)
        width = math.sqrt(2) * torch.erfinv(torch.tensor(level, dtype=torch.float64)).item()
        result = {
            "imputation": imputation,
            "reconstruction": reconstruction,
            "std": std,
            "lower": imputation - width * std,
            "upper": imputation + width * std,
        }
        if n_sampling_times is not None:
            draws = normalizer.denormalize(self._draws(normalizer.normalize(X), mean, n_sampling_times))
            result["imputation"] = torch.where(known.unsqueeze(1), X.unsqueeze(1), draws)
        return {name: values.to(torch.float32).cpu().numpy() for name, values in result.items()}

    def impute(self, test_set: WindowSet, file_type: str = "hdf5", **kwargs: Any) -> np.ndarray:
        """
        Fill windows: the entry `imputation` of :meth:`predict`.

        :param test_set: As for :meth:`predict`.
        :param file_type: Type of the file, if it is one: `"hdf5"`.
        :param kwargs: Passed to :meth:`predict`.
        """
        return self.predict(test_set, file_type, **kwargs)["imputation"]

    def save(self, saving_path: str | Path, overwrite: bool = False) -> None:
        """
        Write what was learnt to a file, without any code in it.

        :param saving_path: Path of the file.
        :param overwrite: Whether a file that is there may be replaced.
        """
        path = Path(saving_path)
        if path.exists() and not overwrite:
            raise FileExistsError(f"{path} exists: choose another name, or replace it with overwrite=True.")
        tensors = self._tensors(self._fitted)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, {"kind": KIND, "format": FORMAT, "arguments": self._arguments, "tensors": tensors})

    def load(self, path: str | Path) -> None:
        """
        Take over what another imputer with the same arguments has learnt and saved.

        :param path: Path of the file.
        """
        content = read_tensors(Path(path), self.device)
        if not isinstance(content, dict) or content.get("kind") != KIND or content.get("format") != FORMAT:
            raise ValueError(f"{path} has not been written by WindowImputer.save of this version.")
        if content["arguments"] != self._arguments:
            raise ValueError(
                f"{path} holds a model of other arguments: make a WindowImputer with "
                f"{', '.join(f'{name}={value!r}' for name, value in content['arguments'].items())}."
            )
        tensors, like = content["tensors"], self._tensors(Normalizer(self._factors, self._factors))
        if {name: value.shape for name, value in tensors.items()} != {name: ours.shape for name, ours in like.items()}:
            raise ValueError(f"{path} does not have the tensors that its arguments say: take another copy.")
        check_finite(tensors, like, str(path))
        self._normalizer = Normalizer(tensors.pop("mean"), tensors.pop("stddev"))
        self._factors = tensors.pop("factors")
        self.model.load_state_dict({name.removeprefix(MODEL): value for name, value in tensors.items()})
        self.model.eval()

    @property
    def _arguments(self) -> dict[str, Any]:
        """The arguments that decide which parameters the model has."""
        return {name: getattr(self, name) for name in ("n_steps", "n_features", "n_latents", "periods")}

    def _tensors(self, normalizer: Normalizer) -> dict[str, Tensor]:
        """All that was learnt, by the names it has in a file."""
        own = {f"{MODEL}{name}": value for name, value in self.model.state_dict().items()}
        return {"mean": normalizer.mean, "stddev": normalizer.stddev, "factors": self._factors, **own}

    @property
    def _fitted(self) -> Normalizer:
        if self._normalizer is None:
            raise RuntimeError("This WindowImputer has not been fitted yet: call fit(train_set) or load(path) first.")
        return self._normalizer

    @property
    def _x(self) -> Tensor:
        """The steps of a window (`N x 1`)."""
        return torch.arange(self.n_steps, dtype=torch.float64, device=self.device).unsqueeze(-1)

    def _calibrate(self, validation: Validation) -> None:
        errors, stddev = self._errors(validation)
        squares = (errors / stddev).square()
        counts = (~squares.isnan()).sum((0, 1))  # (P,)
        self._factors = torch.where(counts >= FEWEST_ENTRIES, squares.nanmean((0, 1)), 1.0)

    def _errors(self, validation: Validation) -> tuple[Tensor, Tensor]:
        """Errors of hidden entries, NaN for all others, and predicted standard deviations (`T x N x P` both)."""
        seen, truth = (self._fitted.normalize(windows) for windows in validation)
        mean, stddev = self._moments(seen)
        return torch.where(seen.isnan(), truth - mean, torch.nan), stddev

    def _moments(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        return moments(self.model, self._x, windows, self.batch_size)

    @torch.no_grad()
    def _draws(self, windows: Tensor, mean: Tensor, number: int) -> Tensor:
        """Draws of whole windows, as far from the mean as intervals are wide (`T x S x N x P`)."""
        likelihood: Any = self.model.likelihood
        parts = []
        with seeded(derive_seed("window_imputer draws", self.seed), self.device):
            for some in windows.split(self.batch_size):
                functions = self.model.condition((self._x, some)).sample(self._x, number)  # (S, T, N, K)
                parts.append(likelihood.observation_model(likelihood.decoder(functions)).sample().movedim(0, 1))
        mean = mean.unsqueeze(1)
        return mean + self._factors.sqrt() * (torch.cat(parts) - mean)

    def _read(self, given: WindowSet, name: str, file_type: str, *keys: str) -> list[Tensor]:
        """The arrays of a set (`T x N x P` each), `X` by default."""
        arrays = read_windows(given, name, keys or ("X",), (self.n_steps, self.n_features), file_type)
        return [array.to(self.device) for array in arrays]
