"""How far shards are from their source: numbers on known logits, and parts that texts pass through."""

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from engine.contract.quality import quality_lines
from export_tools.quality import compare_logits, load_values, pass_through, save_values, token_ids
from export_tools.texts import CALIBRATION, TEXTS
from tests.manifests import manifest

IDS = [np.array([0, 1, 2], np.int64), np.array([2, 1], np.int64)]


def sure_of(tokens: list[int], by: float = 5.0) -> np.ndarray:
    logits = np.zeros((1, len(tokens), 4), np.float32)
    logits[0, np.arange(len(tokens)), tokens] = by
    return logits


def test_the_source_is_as_good_as_itself() -> None:
    logits = [sure_of([1, 2, 3]), sure_of([1, 0])]
    found = compare_logits(logits, logits, IDS)
    assert (found.positions, found.divergence, found.same_token, found.tokens_until_difference) == (5, 0, 1, 5)
    assert found.perplexity == found.source_perplexity == pytest.approx(1 + 3 * np.exp(-5))


def test_shards_that_know_nothing_are_as_perplexed_as_the_vocabulary_is_large() -> None:
    logits, nothing = [sure_of([1, 2, 3]), sure_of([1, 0])], [sure_of([1, 2, 3], 0), sure_of([1, 0], 0)]
    found = compare_logits(logits, nothing, IDS)
    assert found.perplexity == pytest.approx(4)
    p = np.exp(5) / (np.exp(5) + 3), 1 / (np.exp(5) + 3)
    assert found.divergence == pytest.approx(p[0] * np.log(4 * p[0]) + 3 * p[1] * np.log(4 * p[1]))


def test_one_other_choice_among_five_ends_one_of_two_runs() -> None:
    found = compare_logits([sure_of([1, 2, 3]), sure_of([1, 0])], [sure_of([1, 3, 3]), sure_of([1, 0])], IDS)
    assert (found.same_token, found.tokens_until_difference) == (0.8, 2)


def test_texts_pass_through_parts_one_after_the_other() -> None:
    ids = op.parameter([-1, -1], ov.Type.i64, name="input_ids")
    ids.output(0).set_names({"input_ids"})
    first = ov.Model([op.unsqueeze(op.convert(ids, "f32"), op.constant(2))], [ids])  # pyright: ignore[reportGeneralTypeIssues]
    hidden = op.parameter([-1, -1, 1], ov.Type.f32, name="inputs_embeds")
    hidden.output(0).set_names({"inputs_embeds"})
    mask = op.parameter([-1, -1], ov.Type.i64, name="attention_mask")
    mask.output(0).set_names({"attention_mask"})
    summed = op.reduce_sum(op.convert(mask, "f32"), op.constant([1]), keep_dims=True)
    ends = [op.add(hidden, op.unsqueeze(summed, op.constant(2)))]
    last = ov.Model(ends, [hidden, mask])  # pyright: ignore[reportGeneralTypeIssues]
    found = pass_through([first, last], IDS)
    assert [value[0, :, 0].tolist() for value in found] == [[3, 4, 5], [4, 3]]


def test_values_are_kept_by_side(tmp_path: Path) -> None:
    save_values(tmp_path / "values.npz", ids=IDS, ours=[np.ones((1, 2, 3))])
    assert [value.tolist() for value in load_values(tmp_path / "values.npz", "ids")] == [[0, 1, 2], [2, 1]]
    assert load_values(tmp_path / "values.npz", "ours")[0].shape == (1, 2, 3)


def test_texts_too_short_to_say_anything_are_left_out() -> None:
    assert [value.tolist() for value in token_ids([[5], [6, 7], []])] == [[6, 7]]


def test_what_is_measured_is_not_what_scales_are_chosen_by() -> None:
    assert not set(TEXTS) & set(CALIBRATION)


def test_a_manifest_without_quality_has_nothing_to_say() -> None:
    assert quality_lines(manifest()) == []
