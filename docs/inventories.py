"""
What other projects' documentation has and where, for links to it: inventories as Sphinx reads them, of the names that
the installed packages have. So the build needs no network, and a name that a version lacks is not linked to.
"""

from __future__ import annotations

import importlib
import inspect
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from gpytorch_sgpvae.utils.files import replacing

# The operators of linear_operator on its page of compositions and decorations.
COMPOSED = ("AddedDiag", "Cat", "ConstantMul", "Interpolated", "KroneckerProduct", "Masked", "Matmul", "Mul", "PsdSum")
EACH = "generated/{name}.html"  # a page for each name


@dataclass
class Site:
    """
    A project's documentation.

    :ivar url: Where it is.
    :ivar rooms: The page of a module's public names, by module.
    :ivar names: The pages of further names.
    :ivar modules: The pages of modules themselves.
    :ivar short: Names that stand without their module in the signatures of others.
    """

    url: str
    rooms: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    short: tuple[str, ...] = ()


SITES = {
    "python": Site(
        "https://docs.python.org/3",
        rooms={
            room: f"library/{room}.html"
            for room in (
                "collections",
                "collections.abc",
                "contextlib",
                "dataclasses",
                "fractions",
                "pathlib",
                "typing",
            )
        },
        short=("pathlib.Path",),
    ),
    "torch": Site(
        "https://docs.pytorch.org/docs/stable",
        rooms={
            "torch.distributions": "distributions.html",
            "torch.nn": EACH,
            "torch.nn.functional": EACH,
            "torch.optim": EACH,
            "torch.optim.lr_scheduler": EACH,
            "torch.utils.data": "data.html",
            "torch": EACH,
        },
        names={
            "torch.Size": "size.html",
            "torch.Tensor": "tensors.html",
            "torch.device": "tensor_attributes.html",
            "torch.dtype": "tensor_attributes.html",
            "torch.export.export": "export/api_reference.html",
            "torch.optim.Optimizer": "optim.html",
        },
        modules={"torch.distributed": "distributed.html", "torch.func": "func.html"},
        short=(
            "torch.Tensor",
            "torch.distributions.Distribution",
            "torch.optim.Optimizer",
            "torch.optim.lr_scheduler.LRScheduler",
        ),
    ),
    "gpytorch": Site(
        "https://docs.gpytorch.ai/en/stable",
        rooms={
            "gpytorch.constraints": "constraints.html",
            "gpytorch.distributions": "distributions.html",
            "gpytorch.kernels": "kernels.html",
            "gpytorch.likelihoods": "likelihoods.html",
            "gpytorch.means": "means.html",
            "gpytorch.metrics": "metrics.html",
            "gpytorch.mlls": "marginal_log_likelihoods.html",
            "gpytorch.models": "models.html",
            "gpytorch.models.deep_gps": "models.html",
            "gpytorch.models.gplvm": "models.html",
            "gpytorch.optim": "optim.html",
            "gpytorch.priors": "priors.html",
            "gpytorch.settings": "settings.html",
            "gpytorch.variational": "variational.html",
        },
        names={
            "gpytorch.Module": "module.html",
            "gpytorch.variational._VariationalDistribution": "variational.html",
            "gpytorch.variational._VariationalStrategy": "variational.html",
        },
        modules={"gpytorch.metrics": "metrics.html", "gpytorch.settings": "settings.html"},
        short=(
            "gpytorch.constraints.Interval",
            "gpytorch.distributions.MultivariateNormal",
            "gpytorch.kernels.Kernel",
            "gpytorch.likelihoods.Likelihood",
            "gpytorch.models.ApproximateGP",
            "gpytorch.priors.Prior",
        ),
    ),
    "linear_operator": Site(
        "https://linear-operator.readthedocs.io/en/stable",
        rooms={
            "linear_operator": "functions.html",
            "linear_operator.settings": "settings.html",
        },
        names={
            "linear_operator.LinearOperator": "linear_operator.html",
            **{
                f"linear_operator.operators.{kind}LinearOperator": "data_sparse_operators.html"
                for kind in ("BlockDiag", "Chol", "ConstantDiag", "Diag", "Root", "Toeplitz", "Zero")
            },
            **{
                f"linear_operator.operators.{kind}LinearOperator": "composition_decoration_operators.html"
                for kind in COMPOSED
            },
        },
    ),
    "numpy": Site("https://numpy.org/doc/stable/reference", rooms={"numpy": EACH}),
    "pandas": Site("https://pandas.pydata.org/docs/reference", rooms={"pandas": "api/{name}.html"}),
    "sklearn": Site(
        "https://scikit-learn.org/stable/modules",
        rooms=dict.fromkeys(("sklearn.base", "sklearn.impute", "sklearn.preprocessing"), EACH),
    ),
    "matplotlib": Site(
        "https://matplotlib.org/stable/api",
        names={f"matplotlib.axes.{name}": "_as_gen/{name}.html" for name in ("Axes.pcolormesh", "Axes.scatter", "Axes")}
        | {"matplotlib.figure.Figure": "figure_api.html"},
    ),
    "xarray": Site(
        "https://docs.xarray.dev/en/stable",
        names=dict.fromkeys(("xarray.Dataset.interp", "xarray.DataArray", "xarray.Dataset"), EACH),
    ),
}


def write(folder: Path) -> dict[str, tuple[str, str]]:
    """
    Write an inventory of each site.

    :param folder: For the files.
    :return: Sphinx's `intersphinx_mapping`.
    """
    mapping = {}
    for name, site in SITES.items():
        lines = sorted(f"{key} py:{role} 1 {uri} -\n" for key, (role, uri) in entries(site).items())
        header = f"# Sphinx inventory version 2\n# Project: {name}\n# Version: \n"
        header += "# The remainder of this file is compressed using zlib.\n"
        with replacing(folder / f"{name}.inv") as file:
            file.write(header.encode() + zlib.compress("".join(lines).encode()))
        mapping[name] = (site.url, str(folder / f"{name}.inv"))
    return mapping


def entries(site: Site) -> dict[str, tuple[str, str]]:
    """The role and the place of each name of a site that is installed: as it is imported, and as Python shows it."""
    found: dict[str, tuple[str, str]] = {}
    named = [*site.names.items(), *((name, page) for room, page in site.rooms.items() for name in public_names(room))]
    for name, page in named:
        value = look_up(name)
        if value is None or name in found:
            continue
        shown = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
        anchor = shown if name.startswith("torch.distributions.") else name
        of_a_class = isinstance(look_up(name.rpartition(".")[0]), type)
        role = "class" if isinstance(value, type) else "method" if of_a_class else "function"
        place = role, f"{page.format(name=name)}#{anchor}"
        found[name] = place
        found.setdefault(shown, place)
        if isinstance(value, type):
            for method in methods(value):
                found.setdefault(f"{name}.{method}", ("method", f"{page.format(name=name)}#{anchor}.{method}"))
    for name in site.short:
        found[name.rpartition(".")[2]] = found[name]
    for name, page in site.modules.items():
        found[name] = "module", f"{page}#module-{name}"
    return found


def public_names(room: str) -> Iterator[str]:
    """The classes and functions that a module offers, without those of other packages."""
    module = importlib.import_module(room)
    package = room.partition(".")[0]
    for name in getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]:
        value = getattr(module, name, None)
        ours = hasattr(module, "__all__") or str(getattr(value, "__module__", None) or package).startswith(package)
        if ours and not isinstance(value, ModuleType) and (callable(value) or room == "typing"):
            yield f"{room}.{name}"


def methods(value: type) -> list[str]:
    """The public methods that a class has of its own."""
    return [name for name, method in vars(value).items() if inspect.isfunction(method) and not name.startswith("_")]


def look_up(name: str) -> object:
    """What a name stands for, or None."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            value = getattr(value, part, None)
        return value
    return None
