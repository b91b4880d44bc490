"""``distdiag memory``: what it is told, what it tells, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from distdiag import events
from distdiag.cli import cli
from distdiag.errors import DistdiagError
from tests.logs import MONOTONIC_NS, SECOND_NS, Logs

GIB = 1 << 30
MIB = 1 << 20
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
}
FACTORY = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(32, 128)
        self.down = nn.Linear(128, 32)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(32, 10, bias=False)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Attending(nn.Module):
    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x * 2, x * 3)


def alone():
    return Stack()


def with_inputs():
    return Stack(), torch.randn(50, 70, 32)


def attending():
    return nn.Sequential(nn.Linear(16, 16), Attending()), torch.randn(2, 4, 64, 16)


def number():
    return 3


def broken():
    raise ValueError("no such size")


def reads_values():
    return Stack(), torch.zeros(3).tolist()
"""


def asked(*arguments: str) -> tuple[str, int]:
    """Output and exit code."""
    done = CliRunner().invoke(cli, ["memory", *arguments], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.stdout, done.return_value


def told(*arguments: str) -> dict[str, Any]:
    text, _ = asked(*arguments, "--format", "json")
    content: dict[str, Any] = json.loads(text)
    return content


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return str(tmp_path / "config.json")


@pytest.fixture
def factory(tmp_path: Path) -> str:
    path = tmp_path / "factory_of_test.py"
    path.write_text(FACTORY)
    return str(path)


def items(content: dict[str, Any]) -> dict[str, int]:
    return {each["item"]: each["size_bytes"] for each in content["stages"][content["worst_stage"]]["items"]}


def test_first_line_says_in_one_sentence_what_is_needed_and_what_there_is(config: str) -> None:
    arguments = ("--config", config, "--sequence", "8192", "--dp", "8", "--fsdp", "--micro-batch", "2")

    text, code = asked(*arguments, "--device-gib", "80")

    first = " ".join(text[: text.index("\n\n")].split())
    assert first.startswith("DOES NOT FIT llama (8.03 billion parameters) needs ")
    assert "on each of 8 ranks" in first
    assert "more than the 80 GiB of a device" in first
    assert "Largest: activations" in first
    assert code == 1


def test_what_fits_exits_with_0_and_says_what_there_is_room_for(config: str) -> None:
    arguments = ("--config", config, "--sequence", "4096", "--dp", "64", "--fsdp", "--recompute", "full")

    text, code = asked(*arguments, "--device-gib", "80")

    assert text.startswith("FITS  ")
    assert "throughput: " in text
    assert "no recomputation" in text
    assert code == 0


def test_table_of_items_comes_before_the_changes_and_the_questions(config: str) -> None:
    text, _ = asked("--config", config, "--sequence", "8192", "--dp", "8", "--zero", "1", "--device-gib", "80")

    places = [text.index(word) for word in ("item ", "fragmentation margin", "change ", "Does the model fit?", "Taken")]
    assert places == sorted(places)


def test_of_very_many_stages_the_fullest_are_shown(config: str) -> None:
    text, _ = asked("--config", config, "--sequence", "1024", "--pp", "32", "--micro-batches", "32")

    rows = [line.split() for line in text.split("stage  layers", 1)[1].split("\n\n", 1)[0].splitlines()[1:]]
    assert [int(row[0]) for row in rows[:-1]] == [*range(15), 31]  # the last has the head and the logits
    assert " ".join(rows[-1]) == "and 16 stages that need less"


def test_items_and_stages_add_up_in_json(config: str) -> None:
    content = told("--config", config, "--sequence", "4096", "--pp", "4", "--micro-batches", "8", "--tp", "2")

    assert content["schema"] == "distdiag.memory/1"
    assert [stage["stage"] for stage in content["stages"]] == [0, 1, 2, 3]
    for stage in content["stages"]:
        assert stage["peak_bytes"] == sum(each["size_bytes"] for each in stage["items"])
    assert content["peak_bytes"] == max(stage["peak_bytes"] for stage in content["stages"])
    assert content["model"]["parameters"] == 8_030_261_248


@pytest.mark.parametrize(
    "layout",
    [
        ("--dp", "8", "--attention", "eager"),
        ("--dp", "8", "--fsdp", "--replicas", "2", "--no-reshard-after-forward"),
        ("--dp", "4", "--tp", "2", "--pp", "2", "--schedule", "interleaved", "--chunks", "2", "--micro-batches", "4"),
    ],
)
def test_each_change_says_what_really_comes_out_when_it_is_made(config: str, layout: tuple[str, ...]) -> None:
    base = ("--config", config, "--sequence", "8192", "--micro-batch", "2", *layout)

    content = told(*base)

    assert content["changes"]
    for change in content["changes"]:
        kept = [*base, *change["option"].split()]  # of two equal options the last one counts
        assert told(*kept)["peak_bytes"] == change["peak_bytes"], change["name"]
        assert change["saved_bytes"] == content["peak_bytes"] - change["peak_bytes"] > 0


def test_tensor_parallelism_is_not_offered_beyond_a_node(config: str) -> None:
    base = ("--config", config, "--sequence", "8192", "--dp", "4", "--tp", "4")

    offered = {
        size: [each["name"] for each in told(*base, "--per-node", size)["changes"] if each["name"].startswith("tensor")]
        for size in ("4", "8")
    }

    assert offered == {"4": [], "8": ["tensor parallel 4 to 8"]}


def test_changes_that_make_it_fit_come_first_and_those_that_send_least_before_the_others(config: str) -> None:
    content = told("--config", config, "--sequence", "8192", "--dp", "8", "--fsdp", "--device-gib", "60")

    fitting = [each["sent_more_bytes"] for each in content["changes"] if each["fits"]]
    assert content["fits"] is False
    assert fitting
    assert [each["fits"] for each in content["changes"][: len(fitting)]] == [True] * len(fitting)
    assert fitting == sorted(fitting)


def test_changes_together_make_fit_what_none_makes_alone(config: str) -> None:
    base = ["--config", config, "--sequence", "8192", "--dp", "4", "--tp", "2", "--pp", "4", "--micro-batches", "8"]

    content = told(*base, "--device-gib", "24")

    answer = content["questions"]["Memory or throughput?"]
    assert not any(each["fits"] for each in content["changes"])
    assert "no single change is enough" in answer
    options = answer.split("no single change is enough, ")[1].split(" are: ")[0].replace(", then", "").split()
    assert told(*base, *options, "--device-gib", "24")["fits"] is True


def test_numbers_alone_give_the_states_and_say_that_activations_are_left_out() -> None:
    text, code = asked("--parameters", "7.5e9", "--dp", "64", "--zero", "2")

    assert "15.5 GiB" in text  # 16.6 GB
    assert "activations are left out" in " ".join(text.split())
    assert "18 bytes over the ranks" in " ".join(text.split())
    assert code == 0


@pytest.mark.parametrize("number", ["7.5e9", "7500000000", "7.5b", "7.5B", "7500M"])
def test_parameters_may_be_written_as_people_do(number: str) -> None:
    assert told("--parameters", number)["model"]["parameters"] == 7_500_000_000


def test_device_brings_a_context_and_a_margin_unless_they_are_given() -> None:
    assumed = items(told("--parameters", "1b", "--device-gib", "80"))
    given = items(told("--parameters", "1b", "--device-gib", "80", "--context-gib", "0", "--fragmentation", "0"))

    tensors = sum(given.values())
    assert assumed["device context"] == GIB
    assert assumed["fragmentation margin"] == pytest.approx(tensors * (1 / 0.92 - 1))
    assert not {"device context", "fragmentation margin"} & given.keys()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "no model is described"),
        (("--parameters", "1b", "--hidden", "64"), "the model is described twice, by --parameters and --hidden"),
        (("--hidden", "64"), "layers and heads and vocabulary of the model are not known"),
        (("--parameters", "1b", "--zero", "3"), "where parameters are sharded, a layer is gathered"),
        (("--parameters", "1b", "--zero", "3", "--fsdp"), "the model cannot be sharded by --fsdp and by --zero"),
        (("--parameters", "1b", "--whole-tensors"), "--whole-tensors is a way of ZeRO 1"),
        (("--parameters", "1b", "--dp", "0"), "data must be at least 1, not 0"),
        (("--parameters", "1b", "--fragmentation", "2"), "a fragmentation margin of 2.0 is no part"),
        (("--parameters", "1b", "--context-gib", "-1"), "a context of -1.0 GiB is none"),
        (("--parameters", "1b", "--device-gib", "0"), "a device and a node hold something"),
        (("--parameters", "1b", "--sequence", "-5"), "a micro-batch of 1 x -5 tokens is none"),
        (("--config", "nowhere.json"), "No such file or directory: nowhere.json"),
        (("--module", "nowhere.py:make"), "no such file: nowhere.py"),
        (("--module", "nowhere"), "nowhere names no function"),
        (("--module", "no_such_package.x:make"), "no_such_package.x cannot be loaded"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_hint(arguments: tuple[str, ...], problem: str) -> None:
    with pytest.raises(DistdiagError) as caught:
        asked(*arguments)

    assert caught.value.message.startswith(problem)
    assert caught.value.hint


@pytest.mark.parametrize("text", ["{", "[1]", "\udcff"])
def test_damaged_configuration_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))

    with pytest.raises(DistdiagError, match=r"config\.json"):
        asked("--config", str(path))


def test_python_module_gives_its_parameters_by_layer(factory: str) -> None:
    content = told("--module", f"{factory}:alone", "--precision", "fp32")

    layer = 32 * 128 + 128 + 128 * 32 + 32
    assert content["model"]["parameters"] == 3 * layer + 320
    assert content["stages"][0]["layers"] == 3
    assert "activations" not in items(content)


def test_python_module_with_inputs_gives_what_autograd_saves(factory: str) -> None:
    content = told("--module", f"{factory}:with_inputs", "--precision", "fp32")

    tokens = 50 * 70
    layer = tokens * 32 + tokens * 128  # the input of each linear layer; relu's output is that of the second
    head = tokens * 32
    assert items(content)["activations"] == 4 * (3 * layer + head)
    assert items(content)["backward temporaries"] >= 4 * tokens * 128


def test_attention_on_the_meta_device_is_fused_unless_scores_are_asked_for(factory: str) -> None:
    fused, eager = (
        items(told("--module", f"{factory}:attending", "--precision", "fp32", "--attention", kind))["activations"]
        for kind in ("flash", "eager")
    )

    scores = 2 * 4 * 64 * 64 * 4
    assert eager - fused >= scores / 2
    assert fused < scores * 2


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("number", "returned int, not a torch.nn.Module"),
        ("broken", "failed on the meta device: ValueError: no such size"),
        ("absent", "has no function absent"),
        ("reads_values", "failed on the meta device"),
    ],
)
def test_python_module_that_builds_nothing_is_refused(factory: str, function: str, problem: str) -> None:
    with pytest.raises(DistdiagError) as caught:
        asked("--module", f"{factory}:{function}")

    assert problem in caught.value.message
    assert caught.value.hint


def recorded(tmp_path: Path, **sizes: int) -> str:
    """Two ranks that each recorded memory in step 0, in step 1, and in a phase of the user's."""
    logs = Logs(world_size=2)
    for rank in logs:
        for step, more in ((0, 0), (1, 10 * MIB), (2, 20 * MIB)):
            time_ns = MONOTONIC_NS + (10 + step) * SECOND_NS
            values: dict[str, Any] = {name: size + more + rank.rank * MIB for name, size in sizes.items()}
            rank.add(events.Memory(time_ns=time_ns, step=step, **values))
        edges = ((11.5, "begin"), (12.5, "end"))
        for seconds, edge in edges:
            time_ns = MONOTONIC_NS + round(seconds * SECOND_NS)
            rank.add(events.Phase(phase="evaluation", edge=edge, number=7, time_ns=time_ns, step=2))
        rank.exit()
    return str(logs.write(tmp_path / "logs"))


def test_recorded_peaks_of_the_allocator_stand_beside_the_estimate_by_rank_and_phase(tmp_path: Path) -> None:
    logs = recorded(tmp_path, peak_allocated_bytes=100 * MIB, peak_reserved_bytes=200 * MIB, rss_bytes=GIB)

    content = told("--parameters", "1m", "--dp", "2", "--logs", logs)

    rows = {(row["measure"], row["rank"], row["phase"]): row for row in content["recorded"]}
    assert {key: row["recorded_bytes"] // MIB for key, row in rows.items() if key[0] == "allocated"} == {
        ("allocated", 0, "step 0"): 100,
        ("allocated", 0, "later steps"): 110,
        ("allocated", 0, "evaluation"): 120,
        ("allocated", 1, "step 0"): 101,
        ("allocated", 1, "later steps"): 111,
        ("allocated", 1, "evaluation"): 121,
    }
    assert {measure for measure, _, _ in rows} == {"allocated", "reserved"}
    for row in content["recorded"]:
        assert row["unexplained_bytes"] == row["recorded_bytes"] - row["estimated_bytes"]
    assert rows["allocated", 0, "step 0"]["estimated_bytes"] == content["peak_bytes"]


def test_run_without_a_device_is_measured_by_its_processes(tmp_path: Path) -> None:
    logs = recorded(tmp_path, rss_bytes=300 * MIB)

    text, _ = asked("--parameters", "1m", "--dp", "4", "--logs", logs)

    assert "300 MiB to 301 MiB" in text
    assert "the run had 2 ranks, the estimate is for 4" in text
    assert "a process holds Python and its libraries too" in text


def test_logs_without_memory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DistdiagError, match="no memory was recorded"):
        asked("--parameters", "1m", "--logs", recorded_nothing(tmp_path))


def recorded_nothing(tmp_path: Path) -> str:
    logs = Logs(world_size=1)
    for rank in logs:
        rank.exit()
    return str(logs.write(tmp_path / "logs"))
