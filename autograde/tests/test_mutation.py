"""The mutation run notices a test cell that is too weak."""
import pytest

from autograde.mutation import EQUIVALENT, _why_equivalent, mutate

pytestmark = pytest.mark.slow


def test_a_strong_test_cell_kills_every_mutant_and_a_weak_one_does_not(tiny):
    total, survivors = mutate(tiny())
    assert total >= 2 and survivors == []
    blind = tiny({"case(3, want=6": "case(0, want=0", "sample(range(10, 99), 3)": "sample([0], 1)"})
    assert mutate(blind)[1] == ["twice_the_number = number + number → twice_the_number = number - number"]


def test_only_the_listed_changes_count_as_equivalent():
    assert _why_equivalent('raise ValueError("a") → raise ValueError(None)')
    assert not _why_equivalent("raise ValueError(1) → raise TypeError(1)")
    assert not _why_equivalent('if pool.get("healthy", False): → if pool.get("healthy", True):')
    assert all(EQUIVALENT.values())
