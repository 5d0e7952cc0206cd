"""What stands in for missing functions of older versions does the same."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from gpytorch_sgpvae import _compat


@pytest.mark.parametrize("norm_type", [2.0, math.inf])
def test_the_norm_of_tensors_is_that_of_one_vector(norm_type, monkeypatch):
    tensors = [torch.randn(3, 4), torch.randn(5)]
    expected = torch.linalg.vector_norm(torch.cat([tensor.flatten() for tensor in tensors]), norm_type)
    torch.testing.assert_close(_compat.get_total_norm(tensors, norm_type), expected)
    monkeypatch.delattr(torch.nn.utils, "get_total_norm", raising=False)
    torch.testing.assert_close(_compat.get_total_norm(tensors, norm_type), expected)
    assert _compat.get_total_norm([], norm_type) == 0.0
    assert _compat.get_total_norm([torch.tensor([1.0, torch.nan])], norm_type).isnan()


def test_a_transform_is_noticed_while_it_runs():
    inside = []
    torch.func.vmap(lambda x: inside.append(_compat.is_in_transform()) or x)(torch.zeros(2))
    assert inside == [True]
    assert not _compat.is_in_transform()


def test_without_a_way_to_notice_transforms_there_may_always_be_one(monkeypatch):
    monkeypatch.setattr(_compat, "torch", SimpleNamespace(_C=None))
    assert _compat.is_in_transform()


@pytest.mark.parametrize("version", [(3, 10), (3, 11)])
def test_a_note_can_be_read(version, monkeypatch):
    if not hasattr(Exception, "add_note") and version >= (3, 11):
        pytest.skip("this Python has no notes")
    monkeypatch.setattr(_compat, "sys", SimpleNamespace(version_info=version))
    error = ValueError("It failed.")
    for note in ("Here.", "And there."):
        _compat.add_note(error, note)
    assert error.__notes__ == ["Here.", "And there."]
    assert str(error) == ("It failed." if version >= (3, 11) else "It failed.\nHere.\nAnd there.")


def test_a_note_leaves_an_error_with_several_arguments_as_it_is(monkeypatch):
    monkeypatch.setattr(_compat, "sys", SimpleNamespace(version_info=(3, 10)))
    error = FileNotFoundError(2, "No such file", "table.csv")
    _compat.add_note(error, "Here.")
    assert error.__notes__ == ["Here."]
    assert error.args == (2, "No such file")


def test_leaves_are_the_values_of_nested_containers():
    assert _compat.tree_leaves([1, (2, {"a": 3})]) == [1, 2, 3]
