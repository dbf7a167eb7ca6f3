"""Dimensions that are arithmetic of others."""

import pytest

from rmsnorm_deploy.model.dims import evaluated, names_in

SIZES = {"seq": 7, "past": 3, "past_len.1": 5}


@pytest.mark.parametrize("name", ["seq", "past_len.1", "batch size", "16", "", "\u5e8f\u5217", "a//(b", "seq/0"])
def test_plain_names(name):
    assert names_in(name) is None


@pytest.mark.parametrize(
    ("text", "names", "value"),
    [
        ("2*seq", {"seq"}, 14),
        ("past + seq", {"past", "seq"}, 10),
        ("seq-past", {"past", "seq"}, 4),
        ("(seq+1)*2", {"seq"}, 16),
        ("seq//2", {"seq"}, 3),
        ("seq/2", {"seq"}, 3),
        ("floor(seq/2)*2", {"seq"}, 6),
        ("(seq*past)/2 + 1", {"past", "seq"}, 11),
        ("seq % 4", {"seq"}, 3),
        ("seq*seq*past", {"past", "seq"}, 147),
        ("max(seq, 9) + min(past, 2)", {"past", "seq"}, 11),
        ("past_len.1 + 1", {"past_len.1"}, 6),
    ],
)
def test_arithmetic(text, names, value):
    assert names_in(text) == names
    assert evaluated(text, SIZES.__getitem__) == value


def test_a_name_may_look_like_arithmetic():
    assert names_in("seq-len") == {"seq", "len"}


@pytest.mark.parametrize("name", ["9**9**9", "seq**9999999*seq", "seq^2", "+".join(["seq"] * 400)])
def test_what_might_take_for_ever_to_calculate_is_a_plain_name(name):
    assert names_in(name) is None


@pytest.mark.parametrize("text", ["sqrt(seq)", "a b", "2**seq"])
def test_what_is_not_whole_is_refused(text):
    with pytest.raises(ValueError, match="is not"):
        evaluated(text, SIZES.__getitem__)
