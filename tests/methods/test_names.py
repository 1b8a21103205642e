"""Names of methods: each has one canonical name, and no name leads out of its folder."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadSetting, FedBalancerError, UnknownName
from fedbalancer.methods.names import LONGEST_BYTES, canonical_name, parse_method_name, split_names


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("fedbalancer", "fedbalancer"),
        (" fedavg+1t\n", "fedavg+1t"),
        ("fedbalancer[w=5,p=.75]", "fedbalancer[w=5,p=.75]"),
        ("fedbalancer[ p = 0.75 , w = 5.0 ]", "fedbalancer[w=5,p=.75]"),
        ("fedbalancer[p=1.0]", "fedbalancer[p=1]"),
        ("fedbalancer[lss=1e-2]", "fedbalancer[lss=.01]"),
        ("prox+1t[clip_norm=none]", "prox+1t[clip_norm=off]"),
        ("fedbalancer[clients.normalise=False]", "fedbalancer[clients.normalise=false]"),
        ('fedbalancer[deadline.grid="continuous"]', "fedbalancer[deadline.grid=continuous]"),
        ("fedbalancer[pace.w=5,samples.p=.75]", "fedbalancer[w=5,p=.75]"),
        (
            "fedbalancer[work=WholeBatches,deadline.guard_s=20,clients.alpha=2,mu=.1,noise_factor=1,epochs=2]",
            "fedbalancer[epochs=2,noise_factor=1,mu=.1,clients.alpha=2,deadline.guard_s=20,work=WholeBatches]",
        ),
        ("fedavg[deadline=0.50t]", "fedavg[deadline=.5T]"),
        ("fedavg[deadline=wait]", "fedavg[deadline=inf]"),
        ("fedbalancer[deadline=my.module:Mine( first = 60 )]", "fedbalancer[deadline=my.module:Mine(first=60)]"),
        ("fedbalancer[deadline=my.module:Mine()]", "fedbalancer[deadline=my.module:Mine]"),
        ("fedbalancer[deadline=m:A(b=[1,2],a='x,]')]", "fedbalancer[deadline=m:A(a='x,]',b=[1, 2])]"),
        ("fedbalancer[aggregate=Median,w=5]", "fedbalancer[w=5,aggregate=Median]"),
    ],
)
def test_a_method_has_one_name(typed: str, name: str) -> None:
    assert canonical_name(typed) == name
    assert canonical_name(name) == name


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("fedbalancer[]", "must look like key=value"),
        ("fedbalancer[w=5,]", "must look like key=value"),
        ("fedbalancer[w]", "'w' in brackets must look like key=value"),
        ("fedbalancer[w=]", "must look like key=value"),
        ("fedbalancer[w=5", "must end with its settings in brackets"),
        ("fedbalancer[w=5]+qffl", "must end with its settings in brackets"),
        ("fedbalancer[w=5][p=1]", "closes nothing"),
        ("fedbalancer[w=(5]", "not closed"),
        ("fedbalancer[w=5,w=6]", "w is given twice"),
        ("fedbalancer[deadline=1T,deadline=2T]", "deadline is given twice"),
        ("fedbalancer[epochs=0]", "setting epochs = 0 must be a whole number >= 1 and <= 1000"),
        ("fedbalancer[epochs=many]", "setting epochs = 'many'"),
        ("fedbalancer[w=5,pace.w=6]", "w is given twice"),
        ("fedbalancer[w=[1,2]]", "must be a number or a word"),
        ("fedbalancer[deadline.grid='a,b']", "must be a number or a word"),
        ("fedbalancer[rounds=3]", r"rounds describes how methods are measured.*--set rounds="),
        ("fedbalancer[eval_every=3]", "how methods are measured"),
        ("fedbalancer[eval_every_s=3]", "how methods are measured"),
        ("fedbalancer[checkpoint_s=3]", "how methods are measured"),
        ("fedbalancer[latency=har]", "describes the devices"),
        ("fedbalancer[availability=/etc/passwd]", "no slash"),
        ("fedavg[deadline=0T]", "over 0"),
        ("fedavg[deadline=9999T]", "at most 1000 T"),
        ("fedavg[deadline=m:A(1)]", "plain values"),
        ("fedavg[deadline=m:A(a=b)]", "plain values"),
        ("fedavg[deadline=m:A(a=__import__('os').getpid())]", "plain values"),
        ("fedavg[deadline=m:A(a=9**9**9)]", "plain values"),
        ("fedavg[deadline=m:A(a=1)(b=2)]", "plain values"),
        ("fedavg[deadline=m:A(a=1).b]", "plain values"),
        ("fedavg[deadline=m:A(**{})]", "has no name"),
        ("fedavg[deadline=m:A(a=1,a=2)]", "given twice"),
        ("../../etc[w=5]", "no slash"),
        ("..", "no slash"),
        ("a\\b", "no slash"),
        ("fedavg[deadline=m:A(a='../x')]", "no slash"),
        ("fedbalancer[w=\n5]", "control character"),
        ("fedbalancer[w=5\x00]", "control character"),
        (f"fedbalancer[deadline=m:A(a='{'x' * 300}')]", f"at most {LONGEST_BYTES} bytes"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_that_names_the_method(typed: str, message: str) -> None:
    with pytest.raises(BadSetting, match=message) as caught:
        canonical_name(typed)
    assert "\n" not in str(caught.value)


def test_an_unknown_key_suggests_the_nearest_setting_or_slot() -> None:
    with pytest.raises(UnknownName, match=r"unknown setting in method 'fedbalancer.epoch=3..*did you mean epochs"):
        canonical_name("fedbalancer[epoch=3]")
    with pytest.raises(UnknownName, match="did you mean deadline"):
        canonical_name("fedbalancer[deadlin=1T]")


def test_brackets_hold_settings_fields_and_policies() -> None:
    parsed = parse_method_name("fedbalancer[p=.75,epochs=2,deadline=.5T]")
    assert (parsed.settings, parsed.fields, parsed.slots) == ({"epochs": 2}, {"p": 0.75}, {"deadline": ".5T"})
    assert parse_method_name("fedavg+1t").settings == {}


def test_commas_in_brackets_parentheses_and_quotes_divide_no_names() -> None:
    text = "a[w=5,p=.75], b ,,c[deadline=m:A(x=(1,2),y='],[')]"
    assert split_names(text) == ["a[w=5,p=.75]", "b", "c[deadline=m:A(x=(1,2),y='],[')]"]


@given(st.text("ab[](){}=,.'\"\\/+-1T: \n", max_size=40))
def test_any_text_is_one_name_that_stays_itself_or_an_error_of_ours(typed: str) -> None:
    try:
        name = canonical_name(typed)
    except FedBalancerError:
        return
    assert canonical_name(name) == name
    assert not re.search(r"[/\\\n]", name)
