"""What a chi-square test notices: the formula against simulation."""

from __future__ import annotations

import numpy as np
import pytest

from spec_compile.checking.chi_square import chi_square, survival
from spec_compile.checking.power import noncentral_survival, smallest_noticed


@pytest.mark.parametrize("degrees", [1, 4, 30])
def test_without_an_offset_it_is_the_central_law(degrees: int) -> None:
    assert noncentral_survival(7.0, degrees, 0.0) == pytest.approx(survival(7.0, degrees))


@pytest.mark.parametrize("degrees, offset", [(1, 2.0), (5, 20.0), (40, 90.0)])
def test_noncentral_law_is_that_of_shifted_squares(degrees: int, offset: float) -> None:
    normal = np.random.default_rng(0).normal(size=(200_000, degrees))
    normal[:, 0] += np.sqrt(offset)
    sums = (normal**2).sum(axis=1)
    for statistic in (offset / 2 + degrees, offset + degrees):
        simulated = float((sums > statistic).mean())
        assert noncentral_survival(statistic, degrees, offset) == pytest.approx(simulated, abs=5e-3)


@pytest.mark.parametrize("cells", [2, 8, 50])
def test_a_law_that_far_off_is_noticed(cells: int) -> None:
    samples, level, power = 2000, 1e-3, 0.9
    variation = smallest_noticed(samples, cells, level, power)
    right = np.full(cells, 1 / cells)
    # Half the cells give what the other half gets: the hardest way to be this far off.
    wrong = right + 2 * variation / cells * np.where(np.arange(cells) % 2, 1, -1)
    rng = np.random.default_rng(1)
    trials = [chi_square(rng.multinomial(samples, wrong), right).p_value for _ in range(600)]
    assert np.mean(np.array(trials) < level) == pytest.approx(power, abs=0.05)
    assert smallest_noticed(4 * samples, cells, level, power) == pytest.approx(variation / 2)
