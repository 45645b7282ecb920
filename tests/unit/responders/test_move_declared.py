"""What a Pod declares about being moved: what is read, what is an error with its key, and that a hook names no host."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from responders.moves.declared import Declared, ExecHook, HttpHook, read_declared, read_hook

ABILITY, TOPOLOGY, GROUP = "sickbay.dev/ability", "sickbay.dev/topology", "sickbay.dev/group"
STOP, CHECKPOINT = "sickbay.dev/stop-hook", "sickbay.dev/checkpoint-hook"


@pytest.mark.parametrize(
    ("text", "hook"),
    [
        ("http:8080/save", HttpHook(8080, "/save")),
        ("http:1/", HttpHook(1, "/")),
        ("http:65535/a/b?wait=true&n=%41", HttpHook(65_535, "/a/b?wait=true&n=%41")),
        ("http:80//example.com/x", HttpHook(80, "//example.com/x")),
        ("http:80/@example.com", HttpHook(80, "/@example.com")),
        ('exec:main:["save"]', ExecHook("main", ("save",))),
        ('exec:a-1:["sh", "-c", "a:b", ""]', ExecHook("a-1", ("sh", "-c", "a:b", ""))),
        (f"exec:{'c' * 63}:{json.dumps(['x'] * 64)}", ExecHook("c" * 63, ("x",) * 64)),
    ],
)
def test_a_hook_is_a_port_and_a_path_or_a_container_and_a_command(text, hook):
    assert hook == read_hook(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "neither with http: nor with exec:"),
        ("https:443/x", "neither"),
        ("HTTP:80/x", "neither"),
        ("http", "no port"),
        ("http:", "no port"),
        ("http:/x", "no port"),
        ("http:0/x", "no port"),
        ("http:65536/x", "no port"),
        ("http:000080/x", "no port"),
        ("http:+80/x", "no port"),
        ("http:8_0/x", "no port"),
        ("http: 80/x", "no port"),
        ("http:\u0668\u0660/x", "no port"),
        ("http:\u00b2/x", "no port"),
        ("http://example.com/x", "no port"),
        ("http:example.com:80/x", "no port"),
        ("http:80@example.com/x", "no port"),
        ("http:80", "must begin with /"),
        ("http:80/a b", "must begin with /"),
        ("http:80/a#b", "must begin with /"),
        ("http:80/a\\b", "must begin with /"),
        ("http:80/a\r\nHost: b", "must begin with /"),
        ("http:80/a\n", "must begin with /"),
        ("http:80/\u00e9", "must begin with /"),
        ("exec:", "no name of a container"),
        ('exec::["x"]', "no name of a container"),
        ('exec:Main:["x"]', "no name of a container"),
        ('exec:a/b:["x"]', "no name of a container"),
        ('exec:a-:["x"]', "no name of a container"),
        (f'exec:{"c" * 64}:["x"]', "no name of a container"),
        ("exec:main", "no JSON list"),
        ("exec:main:save", "no JSON list"),
        ("exec:main:" + "[" * 4_000, "no JSON list"),
        ("exec:main:{}", "list of 1 to 64"),
        ("exec:main:[]", "list of 1 to 64"),
        (f"exec:main:{json.dumps(['x'] * 65)}", "list of 1 to 64"),
        ('exec:main:[""]', "begin with a program"),
        ('exec:main:["x", 1]', "texts only"),
        ('exec:main:["x", null]', "texts only"),
        ('exec:main:["x", "a\\u0000b"]', "without NUL"),
        ("http:80/" + "a" * 4_089, "more than 4096 bytes"),
    ],
)
def test_a_hook_that_cannot_be_read_says_why(text, why):
    with pytest.raises(ValueError, match=why):
        read_hook(text)


def test_the_longest_hook_has_4096_bytes():
    assert HttpHook(80, "/" + "a" * 4_088) == read_hook("http:80/" + "a" * 4_088)


def test_a_pod_that_declares_nothing_declares_nothing():
    assert Declared() == read_declared({}) == read_declared({"labels": None, "annotations": None})


def test_all_that_a_pod_declares_is_read():
    read = read_declared(
        {
            "labels": {GROUP: "ring", ABILITY: "checkpoint"},
            "annotations": {ABILITY: "neither", STOP: "http:80/stop", CHECKPOINT: 'exec:main:["save"]'},
        }
    )
    assert (
        Declared(
            ability="checkpoint",
            group="ring",
            stop=HttpHook(80, "/stop"),
            checkpoint=ExecHook("main", ("save",)),
        )
        == read
    )


def test_a_hook_is_an_annotation_and_a_group_is_a_label():
    read = read_declared({"labels": {STOP: "http:80/stop"}, "annotations": {GROUP: "ring"}})
    assert (None, "") == (read.stop, read.group)


def test_a_shard_moves_alone_whatever_its_group():
    read = read_declared({"labels": {GROUP: "ring", TOPOLOGY: "shardable"}})
    assert ("shardable", "", ()) == (read.topology, read.group, read.errors)


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        ("labels", ABILITY, "Checkpoint"),
        ("annotations", ABILITY, "checkpoint "),
        ("labels", TOPOLOGY, "half"),
        ("labels", GROUP, "a/b"),
        ("labels", GROUP, "ring\n"),
        ("labels", GROUP, "x" * 64),
        ("annotations", STOP, ""),
        ("annotations", CHECKPOINT, "http://example.com/"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_key_and_never_a_guess(place, key, value):
    read = read_declared({place: {key: value}})
    assert Declared(errors=read.errors) == read
    assert (1, True) == (len(read.errors), read.errors[0].startswith(f"{key}: "))


@pytest.mark.parametrize("values", [None, [], "text", 7, {STOP: 7, ABILITY: None, GROUP: ["a"]}])
def test_metadata_of_another_shape_declares_nothing(values):
    assert Declared() == read_declared({"labels": values, "annotations": values})


KEYS = st.sampled_from([ABILITY, TOPOLOGY, GROUP, STOP, CHECKPOINT])
#: Whatever a text may be, lone surrogates too, and what is nearly a hook.
TEXTS = st.one_of(
    st.text(st.characters()),
    st.builds(
        "{}{}".format, st.sampled_from(["http:", "exec:main:", 'exec:main:["a"', "http:80/"]), st.text()
    ),
)
METADATA = st.fixed_dictionaries(
    {
        "labels": st.dictionaries(KEYS, TEXTS),
        "annotations": st.dictionaries(KEYS, TEXTS),
    }
)


@given(METADATA)
def test_whatever_the_metadata_say_they_are_read_and_nothing_is_raised(metadata):
    read = read_declared(metadata)
    for key, hook in ((STOP, read.stop), (CHECKPOINT, read.checkpoint)):
        wrong = any(error.startswith(f"{key}: ") for error in read.errors)
        assert (key in metadata["annotations"]) == (wrong or hook is not None)
        assert not (wrong and hook)


#: Texts of what URLs are made of, so that many of them are hooks.
URLISH = st.text(st.sampled_from("/@:?#%[].\\ae2&\r\n \t\u3002\uff0f"), max_size=30)


@given(st.integers(-1, 70_000), URLISH, st.sampled_from(["", "/", "//"]))
def test_a_hook_by_http_never_names_a_host(port, rest, slash):
    try:
        hook = read_hook(f"http:{port}{slash}{rest}")
    except ValueError:
        return
    for host, written in (("192.0.2.1", "192.0.2.1"), ("2001:db8::1", "[2001:db8::1]")):
        url = URL(f"http://{written}:{hook.port}{hook.path}")
        assert (host, port, None, None) == (url.host, url.port, url.user, url.password)
