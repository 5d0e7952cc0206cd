"""What scikit-learn asks of a transformer, beside fitting and transforming."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin

from .errors import NotFittedTableError, TableError, listed
from .fitted import FittedTable
from .frames import CONTAINERS


class TableEstimator(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """
    A transformer of tables whose columns stay what they are. scikit-learn's own wrapping of what `transform` returns is
    off: it would rename columns by their places, where those of a table are told apart by their names.

    :ivar n_features_in\\_: The number of columns of the table that was fitted.
    :ivar feature_names_in\\_: Their names, if they had any.
    """

    _table: FittedTable

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(auto_wrap_output_keys=None, **kwargs)

    @property
    def fitted_(self) -> FittedTable:
        """All that was fitted, for those who want to look into it: columns, plan, trend, model, calibration."""
        if not self.__sklearn_is_fitted__():
            raise NotFittedTableError(f"This {type(self).__name__} has not been fitted yet: call fit(table) first.")
        return self._table

    @property
    def n_features_in_(self) -> int:
        """The number of columns of the table that was fitted."""
        return self.fitted_.form.number

    @property
    def feature_names_in_(self) -> np.ndarray:
        """The names of the columns of the table that was fitted; there is no such attribute if they had none."""
        features = self.fitted_.form.features
        if features is None:
            raise AttributeError("The table that was fitted had no names of columns.")
        return np.array(features, dtype=object)

    def set_output(self, *, transform: str | None = None) -> TableEstimator:
        """
        Choose the kind of table that :meth:`transform` returns.

        :param transform: `"default"`, the kind that came; `"pandas"`; `"polars"`; or None for no change. scikit-learn's
            own setting, `sklearn.set_config(transform_output=...)`, is obeyed where nothing is chosen here.
        """
        if transform is not None:
            _check_container(transform)
            # under this name `sklearn.base.clone` takes it along
            self._sklearn_output_config = {"transform": transform}
        return self

    @property
    def _container(self) -> str:
        """The kind of table that `transform` is to return."""
        chosen = getattr(self, "_sklearn_output_config", {})
        container = chosen.get("transform", get_config()["transform_output"])
        _check_container(container)
        return container

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_table")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _check_container(container: Any) -> None:
    if container not in CONTAINERS:
        raise TableError(f"transform must be one of {listed(CONTAINERS)}, got {container!r}.")
