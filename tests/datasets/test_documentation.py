from __future__ import annotations

import doctest

import pytest

from gpytorch_sgpvae import datasets

LOADERS = ["load_jura", "load_eeg", "load_eeg_recordings", "load_amedas"]


@pytest.mark.parametrize("name", datasets.__all__)
def test_every_public_name_is_documented_with_an_example(name):
    doc = getattr(datasets, name).__doc__
    assert ">>>" in doc or name in ("BouncingBalls", "PatientTable", "SensorTable", "WeatherTable")


@pytest.mark.parametrize("name", LOADERS)
def test_the_examples_of_the_loaders_are_right_where_their_files_are(real_data, name):
    """Doctests leave them out, as few computers have the files."""
    doc = getattr(datasets, name).__doc__.replace("# doctest: +SKIP", "")
    example = doctest.DocTestParser().get_doctest(doc, {}, name, None, None)
    output: list[str] = []
    doctest.DocTestRunner().run(example, out=output.append)
    assert output == []
