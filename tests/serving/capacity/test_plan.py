"""The whole plan of a spec: sums, machines, limits, dollars, and what is refused."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.capacity.architecture import Architecture
from serving.capacity.batching import curve_of
from serving.capacity.checks import Pool, Rollout, plan_rollout
from serving.capacity.data import differences, plan_data
from serving.capacity.known import Known, read_known
from serving.capacity.llm_memory import LengthMix
from serving.capacity.page import render_page
from serving.capacity.plan import ModelPlan, Settings, plan_fleet, plan_model
from serving.errors import InputError
from serving.paths import SPECS
from serving.spec import ModelSpec, load_specs, parse_spec
from tests.serving.engines.test_kinds import CHAT

Stated = Callable[[Mapping[str, object]], dict[str | int, Any]]
Shapes = dict[str, Architecture]
TEXTBOOK = curve_of({1: 3, 16: 4, 64: 8}, "textbook")


@pytest.fixture
def ranker(stated: Stated) -> Callable[..., ModelSpec]:
    def change(changes: Mapping[str, object] | None = None) -> ModelSpec:
        return parse_spec(stated(changes or {}), "ranker")

    return change


@pytest.fixture
def chat(stated: Stated) -> Callable[..., ModelSpec]:
    """A chat with Llama 3 8B on L4, with changes."""

    def change(changes: Mapping[str, object] | None = None) -> ModelSpec:
        usual = {
            "traffic": {
                "peak_rps": 4.0, "service_time_ms": 8000.0, "concurrency_per_replica": 16,
                "headroom_ratio": 1.25,
            },
        }  # fmt: skip
        data = stated(CHAT | usual)
        data["slo"]["inter_token_latency_p99_ms"] = 120.0
        for path, value in (changes or {}).items():
            *parents, last = path.split(".")
            place = data
            for parent in parents:
                place = place[parent]
            place[last] = value
        return parse_spec(data, "chat")

    return change


def planned(spec: ModelSpec, known: Known | None = None, **settings: Any) -> ModelPlan:
    return plan_model(spec, known or Known(), Settings(**settings))


def test_the_shipped_ranker_takes_seven_of_the_cheapest_machines_with_an_l4() -> None:
    plan = plan_fleet(load_specs(SPECS), {}, Settings("prod"))
    ranker = next(model for model in plan.models if model.spec.name == "ranker")
    assert ranker.replicas == 7
    assert ranker.chosen is not None
    assert (ranker.chosen.instance.type, ranker.chosen.instances) == ("g6.xlarge", 7)
    assert ranker.usd_per_hour == pytest.approx(7 * 0.8048)
    assert ranker.usd_per_million_predictions == pytest.approx(7 * 0.8048 / 7.2)
    assert ranker.scaling.target_in_flight == 16


def test_every_shipped_spec_can_be_had() -> None:
    assert plan_fleet(load_specs(SPECS), {}, Settings()).refusals == ()


def test_the_same_specs_give_the_same_plan_byte_for_byte(ranker: Callable[..., ModelSpec]) -> None:
    known = {"ranker": Known(curve=TEXTBOOK)}
    one, two = (plan_fleet([ranker()], known, Settings()) for _ in range(2))
    assert json.dumps(plan_data(one)) == json.dumps(plan_data(two))
    assert render_page(one) == render_page(two)


def test_every_instance_is_judged(ranker: Callable[..., ModelSpec]) -> None:
    choice = planned(ranker()).choice
    assert len(choice.candidates) + len(choice.rejected) == 77
    assert all(item.reason for item in choice.rejected)


def test_a_measured_curve_takes_the_place_of_the_estimate(
    ranker: Callable[..., ModelSpec],
) -> None:
    plan = planned(
        ranker({"traffic.peak_rps": 80_000.0, "scaling.max_replicas": 300}), Known(TEXTBOOK)
    )
    assert plan.served is not None
    # 64 in 8 ms on two instances are 16,000 a second; Little's law alone asks for more here.
    assert plan.served.rps == 16_000
    assert plan.replicas == max(plan.law.replicas, 7) == 250
    assert plan.dial is not None
    assert not any("speed is the spec's" in text for text in plan.assumed)


def test_the_curve_asks_for_more_where_the_estimate_was_too_good(
    ranker: Callable[..., ModelSpec],
) -> None:
    slow = curve_of({1: 20, 64: 1280}, "slow")
    plan = planned(ranker({"slo.latency_p99_ms": 100.0, "scaling.max_replicas": 40}), Known(slow))
    assert plan.served is not None
    assert plan.replicas == 25 > plan.law.replicas


def test_an_slo_that_not_even_one_request_keeps_is_refused(
    ranker: Callable[..., ModelSpec],
) -> None:
    plan = planned(ranker(), Known(curve_of({1: 40}, "slow")))
    assert any("slo.latency_p99_ms=50 is not kept by a single request" in t for t in plan.refusals)


def test_a_mean_above_the_p99_is_refused_and_one_equal_to_it_warned_of(
    ranker: Callable[..., ModelSpec],
) -> None:
    assert "is on average more than" in planned(ranker({"slo.latency_p99_ms": 40.0})).refusals[0]
    assert any("leaves room for a tail" in text for text in planned(ranker()).warnings)
    assert not any(
        "tail" in text for text in planned(ranker({"traffic.service_time_ms": 20.0})).warnings
    )


def test_too_few_replicas_are_refused_with_the_sum_and_the_number_that_works(
    ranker: Callable[..., ModelSpec],
) -> None:
    (text,) = planned(ranker({"scaling.max_replicas": 4})).refusals
    assert text.startswith(
        "ranker: scaling.max_replicas=4 is below the 7 replicas of the peak: 2,000"
    )
    assert text.endswith("use 7 or more, or a faster GPU")
    assert planned(ranker({"scaling.max_replicas": 7})).refusals == ()


def test_batches_that_can_never_be_full_are_warned_of(ranker: Callable[..., ModelSpec]) -> None:
    assert any(
        "preferred_batch_size=[16, 64] has 64" in text for text in planned(ranker()).warnings
    )
    full = ranker({"engine.dynamic_batching.preferred_batch_size": [16]})
    assert not any("preferred_batch_size" in text for text in planned(full).warnings)


def test_a_steep_ramp_is_warned_of_with_a_floor_that_bears_it(
    ranker: Callable[..., ModelSpec],
) -> None:
    steep = planned(ranker(), ramp_seconds=600)
    (text,) = [text for text in steep.warnings if "min_replicas=2" in text]
    assert "use 5 or more" in text
    again = planned(ranker({"scaling.min_replicas": 5}), ramp_seconds=600)
    assert not any("min_replicas" in text for text in again.warnings)


def test_clients_that_may_send_more_than_is_planned_are_warned_of(
    ranker: Callable[..., ModelSpec],
) -> None:
    spec = ranker({"clients": [{"name": "ads", "rate_limit_rps": 2501}]})
    assert any("clients may send 2,501 rps together" in text for text in planned(spec).warnings)


# Pool, quota and rollout


@pytest.mark.parametrize(
    ("replicas", "gpus", "pool", "expected"),
    [
        (1, 1, 1, Rollout(0, 1, 1)),
        (4, 1, 4, Rollout(0, 1, 4)),
        (1, 1, 2, Rollout(1, 0, 2)),
        (2, 4, 11, Rollout(0, 1, 8)),
        (2, 4, None, Rollout(1, 0, 12)),
    ],
)
def test_a_rollout_never_waits_for_a_gpu_that_it_holds_itself(
    replicas: int, gpus: int, pool: int | None, expected: Rollout
) -> None:
    found = plan_rollout(replicas, gpus, pool)
    assert found == expected
    assert pool is None or found.gpus <= pool


def test_a_pool_that_is_too_small_is_refused_with_what_would_do(
    ranker: Callable[..., ModelSpec],
) -> None:
    (text,) = planned(ranker(), pool=Pool(gpus=12)).refusals
    assert (
        "scaling.max_replicas=20 takes 20 GPUs with 1 for each replica, and the pool has 12" in text
    )
    assert "use 12 or less, or a pool of 20 GPUs" in text
    assert planned(ranker({"scaling.max_replicas": 12}), pool=Pool(gpus=12)).refusals == ()


def test_a_pool_without_room_for_canary_and_shadow_is_refused(
    ranker: Callable[..., ModelSpec],
) -> None:
    (text,) = planned(ranker({"scaling.max_replicas": 8}), pool=Pool(gpus=8)).refusals
    assert "7 stable + 1 canary + 1 shadow take 9 GPUs" in text


def test_a_quota_that_is_too_small_is_refused(ranker: Callable[..., ModelSpec]) -> None:
    (text,) = planned(ranker(), pool=Pool(vcpus=27)).refusals
    assert "g6.xlarge = 28 vCPUs, and the quota is 27; ask AWS for a quota of 28 vCPUs" in text
    assert planned(ranker(), pool=Pool(vcpus=28)).refusals == ()


# Language models


def test_a_chat_without_its_config_says_that_memory_is_not_checked(
    chat: Callable[..., ModelSpec],
) -> None:
    plan = planned(chat())
    assert plan.llm is None
    assert any("memory of the GPU is not checked" in text for text in plan.assumed)


def test_a_chat_takes_the_lower_of_what_is_stated_and_what_memory_holds(
    chat: Callable[..., ModelSpec], shapes: Shapes
) -> None:
    known = Known(architecture=shapes["llama-3-8b"], mix=LengthMix(2000, 500))
    plan = planned(chat(), known)
    assert plan.llm is not None
    # 15 GiB of weights leave a few GiB of an L4: fewer than 16 sequences of 2,500 tokens.
    assert plan.llm.per_replica < 16
    assert plan.law.per_replica == plan.llm.per_replica
    short = planned(chat(), Known(architecture=shapes["llama-3-8b"], mix=LengthMix(200, 100)))
    assert short.law.per_replica == 16
    assert short.replicas == 3
    assert short.refusals == ()
    assert short.usd_per_million_tokens == pytest.approx(
        (short.usd_per_hour or 0) / (4 * 100 * 3600) * 1e6
    )


def test_a_time_that_the_gpu_cannot_keep_at_best_is_refused_and_planned_for(
    chat: Callable[..., ModelSpec], shapes: Shapes
) -> None:
    known = Known(architecture=shapes["llama-3-8b"], mix=LengthMix(1024, 256))
    plan = planned(chat(), known)
    (text,) = plan.refusals
    assert "traffic.service_time_ms=8000 is less than the 19," in text
    assert "1,024 tokens in and 256 out take at best on 1 l4 with 16 at once" in text
    assert plan.llm is not None
    assert plan.replicas * plan.llm.request_rps >= 4 * 1.25
    stated = float(text.partition("; use ")[2].split()[0])
    again = planned(chat({"traffic.service_time_ms": stated}), known)
    assert again.refusals == ()
    assert again.replicas == plan.replicas


def test_a_model_that_does_not_fit_is_refused_and_gpus_that_would_do_are_listed(
    chat: Callable[..., ModelSpec], shapes: Shapes
) -> None:
    known = Known(architecture=shapes["llama-3-70b"], mix=LengthMix(1000, 200))
    plan = planned(chat({"traffic.peak_rps": 1.0}), known)
    assert any("chat: hardware.gpu=l4 has" in text for text in plan.refusals)
    assert plan.chosen is None
    reasons = {item.instance.type: item.reason for item in plan.choice.rejected}
    assert "weights and reserve take" in reasons["g6.xlarge"]
    fitting = {item.instance.gpu.name for item in plan.choice.candidates if item.instance.gpu}
    assert fitting <= {"h200", "b200", "b300"}
    assert fitting


def test_a_context_that_cannot_fit_is_refused_on_the_specs_gpu(
    chat: Callable[..., ModelSpec], shapes: Shapes
) -> None:
    spec = chat({"engine.max_model_len": 131_072})
    (text,) = planned(spec, Known(architecture=shapes["llama-3-8b"])).refusals
    assert "chat: engine.max_model_len=131072 is more than the" in text


def test_a_degree_that_no_instance_has_is_refused(
    chat: Callable[..., ModelSpec], shapes: Shapes
) -> None:
    known = Known(architecture=shapes["llama-3-8b"])
    spec = chat({"engine.tensor_parallel_size": 16})
    assert any("=16 is more than the 8 GPUs" in text for text in planned(spec, known).refusals)
    spec = chat({"engine.tensor_parallel_size": 3})
    (text,) = planned(spec, known).refusals
    assert "=3 does not divide attention heads=32; use one of 1, 2, 4, 8" in text


def test_bfloat16_is_refused_on_a_t4(chat: Callable[..., ModelSpec], shapes: Shapes) -> None:
    spec = chat({"engine.dtype": "bfloat16", "hardware.gpu": "t4"})
    (text,) = planned(spec, Known(architecture=shapes["llama-3-8b"])).refusals
    assert "engine.dtype=bfloat16 is not a type that a t4 computes with" in text


def test_a_token_that_cannot_come_in_time_is_refused(
    chat: Callable[..., ModelSpec], shapes: Shapes
) -> None:
    # An L4 reads 16 GB of weights in 63 ms at best.
    spec = chat({"slo.inter_token_latency_p99_ms": 20.0})
    (text,) = planned(spec, Known(architecture=shapes["llama-3-8b"])).refusals
    assert "slo.inter_token_latency_p99_ms=20 is less than the" in text


# Sharing


def test_models_that_share_are_packed_and_the_risk_is_told(
    ranker: Callable[..., ModelSpec],
) -> None:
    one = ranker({"hardware": {"gpu": "l4", "sharing": "mps"}})
    plan = plan_fleet([one], {}, Settings())
    (floor,) = plan.floors
    # Seven replicas of one model are on seven GPUs, however small they are.
    assert len(floor.gpus) == 7
    assert plan.usd_per_hour == floor.usd_per_hour
    assert any("no memory bandwidth apart" in risk for risk in floor.risks)


def test_partitions_are_planned_where_isolation_is_asked_for(
    ranker: Callable[..., ModelSpec],
) -> None:
    spec = ranker({"hardware": {"gpu": "a100", "sharing": "mig"}})
    (floor,) = plan_fleet([spec], {}, Settings()).floors
    assert floor.parts is not None
    assert all("g." in held for gpu in floor.gpus for held in gpu)


def test_partitions_of_a_gpu_that_does_not_divide_are_refused(
    ranker: Callable[..., ModelSpec],
) -> None:
    spec = ranker({"hardware": {"gpu": "l4", "sharing": "mig"}})
    with pytest.raises(InputError, match="gpu=l4 does not divide"):
        plan_fleet([spec], {}, Settings())


def test_a_model_that_shares_pays_for_its_part(ranker: Callable[..., ModelSpec]) -> None:
    plan = planned(ranker({"hardware": {"gpu": "l4", "sharing": "mps"}}))
    assert plan.usd_per_hour == pytest.approx(7 * 0.15 * 0.8048)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"hardware.sharing": "mps"}, "gpu_memory_utilization=0.92 leaves no other model room"),
        (
            {"hardware.sharing": "mig", "engine.tensor_parallel_size": 2},
            "tensor_parallel_size=2 splits a model over GPUs that hardware.sharing=mig divides",
        ),
        ({"hardware.sharing": "mps", "engine.gpu_memory_utilization": 0.5}, None),
    ],
)
def test_an_engine_that_cannot_share_is_refused(
    chat: Callable[..., ModelSpec], changes: dict[str, object], expected: str | None
) -> None:
    told = planned(chat(changes)).refusals
    assert (expected is None) == (told == ())
    assert expected is None or expected in told[0]


def test_cpu_models_are_priced_too(ranker: Callable[..., ModelSpec]) -> None:
    changes: dict[str, object] = {
        "hardware": {"gpu": "none"},
        "engine.instance_group": {"count": 2},
    }
    plan = planned(ranker(changes))
    assert plan.chosen is not None
    assert plan.chosen.instance.accelerator == "none"
    assert plan.rollout.gpus == 0


# Data and pages


def test_data_says_what_every_number_is_in_and_where_prices_are_from() -> None:
    data = plan_data(plan_fleet(load_specs(SPECS), {}, Settings("prod")))
    assert data["prices"]["date"] == "2026-07-20"
    assert data["models"]["ranker"]["autoscaling"]["scale_down_window_seconds"] == 360
    json.dumps(data)


def test_a_difference_names_the_place_and_both_values(ranker: Callable[..., ModelSpec]) -> None:
    old, new = (
        plan_data(plan_fleet([ranker({"traffic.peak_rps": rate})], {}, Settings()))
        for rate in (2000.0, 4000.0)
    )
    found = {path: (one, other) for path, one, other in differences(old, new)}
    assert found["models.ranker.replicas"] == (7, 13)
    assert list(differences(old, old)) == []


def test_the_page_needs_nothing_else_and_escapes_what_it_is_given(
    chat: Callable[..., ModelSpec], shapes: Shapes, ranker: Callable[..., ModelSpec]
) -> None:
    known = {
        "chat": Known(architecture=shapes["llama-3-8b"], mix=LengthMix(200, 100)),
        "ranker": Known(curve=TEXTBOOK),
    }
    specs = [chat(), ranker({"hardware": {"gpu": "l4", "sharing": "mps"}})]
    page = render_page(plan_fleet(specs, known, Settings("<prod>")))
    assert page.count("<svg") == page.count("</svg>") == 4
    assert "&lt;prod&gt;" in page
    assert "<prod>" not in page
    assert "src=" not in page
    assert "href=" not in page


def test_what_is_known_is_read_from_the_models_folder(tmp_path: Path) -> None:
    assert read_known(tmp_path / "none") == Known()
    (tmp_path / "batch_curve.json").write_text('{"1": 3, "16": 4}')
    (tmp_path / "model.onnx").write_bytes(bytes(1000))
    known = read_known(tmp_path)
    assert known.curve is not None
    assert known.stored_bytes == 1000


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_a_spec_says_there_is_a_plan_or_a_reason(data: st.DataObject) -> None:
    number = st.floats(1e-3, 1e7, allow_nan=False)
    sharing = data.draw(st.sampled_from(["none", "mps", "time-slicing"]))
    spec = ModelSpec.model_validate(
        {
            "name": "any",
            "artifact": {"format": "onnx"},
            "engine": {
                "kind": "triton",
                "platform": "onnxruntime_onnx",
                "max_batch_size": data.draw(st.integers(1, 512)),
                "dynamic_batching": {},
                "instance_group": {"count": data.draw(st.integers(1, 8))},
            },
            "inputs": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
            "outputs": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
            "slo": {"latency_p99_ms": data.draw(number), "error_ratio": 0.01, "because": "so"},
            "traffic": {
                "peak_rps": data.draw(number),
                "service_time_ms": data.draw(number),
                "concurrency_per_replica": data.draw(st.integers(1, 10_000)),
                "headroom_ratio": data.draw(st.floats(1, 10)),
            },
            "scaling": {"min_replicas": 1, "max_replicas": data.draw(st.integers(1, 300))},
            "hardware": {"gpu": data.draw(st.sampled_from(["l4", "h100"])), "sharing": sharing},
            "clients": [{"name": "c", "rate_limit_rps": 1}],
        }
    )
    pool = Pool(gpus=data.draw(st.none() | st.integers(0, 100)))
    plan = plan_fleet([spec], {}, Settings(pool=pool))
    (model,) = plan.models
    law = model.law
    assert model.replicas * law.per_replica >= law.in_flight
    assert (model.replicas > spec.scaling.max_replicas) <= bool(model.refusals)
    assert 1 <= model.scaling.min_replicas <= spec.scaling.max_replicas
    json.dumps(plan_data(plan), allow_nan=False)
    assert render_page(plan)
    assert all(text.startswith("any: ") and "; " in text for text in model.refusals)
