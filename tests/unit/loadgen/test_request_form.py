"""Bodies in the form of each API, pictures, and what an API does not take."""

import base64
import io
from typing import Any

import pytest
from PIL import Image

from surgeproof.loadgen.content import ContentMaker
from surgeproof.loadgen.pictures import picture, picture_url
from surgeproof.loadgen.prompts import PromptMaker
from surgeproof.loadgen.request_form import RequestForm, endpoint_headers, items_of, misfit
from surgeproof.records import RequestPlan
from surgeproof.scenario import ClassWork, LoadConfig, TargetConfig

TURNS = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": [
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
    ]},
    {"role": "assistant", "content": "That."},
    {"role": "tool", "tool_call_id": "c1", "content": "42"},
]  # fmt: skip


def body(endpoint: Any, content: dict[str, Any], **options: Any) -> dict[str, Any]:
    form = RequestForm(TargetConfig(endpoint=endpoint, **options), "m")
    return form.body_of(content, 9, "P1", include_usage=True)


def test_each_api_gets_a_prompt_in_its_own_form() -> None:
    prompt = {"prompt": "hi"}
    message = {"role": "user", "content": "hi"}
    assert body("chat", prompt) == {
        "model": "m", "messages": [message], "max_tokens": 9, "temperature": 0.0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert body("responses", prompt) == {
        "model": "m", "input": [message], "max_output_tokens": 9, "temperature": 0.0, "stream": True,
    }  # fmt: skip
    assert body("messages", prompt) == {
        "model": "m", "messages": [message], "max_tokens": 9, "temperature": 0.0, "stream": True,
    }  # fmt: skip
    assert body("embeddings", prompt) == {"model": "m", "input": "hi"}
    assert body("rerank", {"query": "q", "documents": ["a", "b"]}) == {
        "model": "m", "query": "q", "documents": ["a", "b"],
    }  # fmt: skip


def test_an_answer_is_asked_for_whole() -> None:
    sent = body("chat", {"prompt": "hi"}, stream=False)
    assert sent["stream"] is False
    assert "stream_options" not in sent


def test_messages_and_pictures_are_written_in_each_apis_form() -> None:
    assert body("responses", {"messages": TURNS})["input"] == [
        {"role": "system", "content": "Be short."},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What?"},
                {"type": "input_image", "image_url": "data:image/png;base64,QUJD"},
            ],
        },
        {"role": "assistant", "content": "That."},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
    ]
    sent = body("messages", {"messages": TURNS})
    assert sent["system"] == "Be short."
    assert sent["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
            ],
        },
        {"role": "assistant", "content": "That."},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "42"}]},
    ]


@pytest.mark.parametrize(
    ("endpoint", "content", "said"),
    [
        ("completions", {"messages": TURNS}, "use --endpoint chat"),
        ("rerank", {"prompt": "x"}, "no documents to rank"),
        ("chat", {"query": "q", "documents": []}, "use --endpoint rerank"),
        ("chat", {"input": "x"}, "use --endpoint responses or embeddings"),
        ("messages", {"messages": [], "tools": [{"type": "function", "function": {"name": "f"}}]}, "has tools"),
    ],
)
def test_a_row_that_an_api_does_not_take_is_told(endpoint: str, content: dict[str, Any], said: str) -> None:
    assert said in (misfit(endpoint, content) or "")


def test_a_row_in_an_apis_own_form_is_taken() -> None:
    tools = [{"name": "f", "input_schema": {}}]
    assert misfit("messages", {"messages": [], "tools": tools}) is None
    assert misfit("embeddings", {"input": ["a", "b"]}) is None
    assert misfit("responses", {"input": "x", "tools": [{"type": "function", "name": "f"}]}) is None
    assert [items_of(row) for row in ({"input": ["a", "b"]}, {"input": [1, 2]}, {"documents": ["x"] * 3}, {})] == [
        2, 1, 3, 1,
    ]  # fmt: skip


def test_a_class_asks_an_api_of_its_own() -> None:
    form = RequestForm(TargetConfig(), "m", by_class={"P2": ClassWork(endpoint="embeddings")})
    assert (form.path_of("P1"), form.path_of("P2")) == ("/chat/completions", "/embeddings")
    assert form.body_of({"prompt": "x"}, 9, "P2", include_usage=True) == {"model": "m", "input": "x"}


def test_anthropic_gets_its_version_and_the_key_under_its_own_name() -> None:
    sent = endpoint_headers("messages", {"Authorization": "Bearer sk-1"})
    assert sent == {"anthropic-version": "2023-06-01", "x-api-key": "sk-1", "Authorization": "Bearer sk-1"}
    assert endpoint_headers("messages", {"X-Api-Key": "mine"})["X-Api-Key"] == "mine"
    assert endpoint_headers("chat", {"Authorization": "Bearer sk-1"}) == {"Authorization": "Bearer sk-1"}


@pytest.mark.parametrize("size", [(1, 1), (28, 56), (513, 257)])
def test_pictures_are_pngs_of_their_size_and_no_two_are_alike(size: tuple[int, int]) -> None:
    """Opened by a library that others wrote."""
    opened = [Image.open(io.BytesIO(picture(*size, seed))) for seed in (1, 2, 1)]
    for image in opened:
        image.load()
    assert {image.size for image in opened} == {size}
    pixels = [image.convert("RGB").tobytes() for image in opened]
    assert pixels[0] == pixels[2] != pixels[1]


def test_a_request_has_its_text_its_items_and_its_pictures() -> None:
    plan = RequestPlan(0, 0, "P1", 120, 9, 77, items=3)
    maker = ContentMaker(PromptMaker(1), LoadConfig())
    texts = maker.of(plan, "embeddings")["input"]
    assert [len(text.split()) for text in texts] == [40, 40, 40]
    assert len(set(texts)) == 3
    asked = maker.of(plan, "rerank")
    # A server reads the question, of 32 tokens, with each document: 3 times 40 in all.
    assert len(asked["query"].split()) == 32
    assert [len(text.split()) for text in asked["documents"]] == [8, 8, 8]
    sent = ContentMaker(PromptMaker(1), LoadConfig(images=2, image_size=(30, 20))).of(plan, "chat")
    (message,) = sent["messages"]
    assert [part["type"] for part in message["content"]] == ["text", "image_url", "image_url"]
    url = message["content"][1]["image_url"]["url"]
    assert Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).size == (30, 20)
    assert url == picture_url(30, 20, 77)
    assert url != message["content"][2]["image_url"]["url"]
