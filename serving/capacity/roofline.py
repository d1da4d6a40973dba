"""How fast a language model is at best: bound by memory as it writes, by compute as it reads.

Writing a token reads every weight that it needs, and the keys and values of every sequence, once
for the whole batch. Reading a prompt multiplies every token with every weight. Real engines are
slower; a measurement replaces these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from serving.capacity.llm_memory import Budget, LengthMix
from serving.hardware.gpus import BANDWIDTH_RATIO, NumberType


@dataclass(frozen=True, slots=True)
class Roofline:
    """Bounds of one replica."""

    budget: Budget
    bytes_per_second: float
    """Of one GPU."""
    flops: float
    """Of one GPU, in operations a second."""

    @property
    def degree(self) -> int:
        """GPUs of the replica."""
        return self.budget.cache.tensor_parallel_size

    def step_ms(self, sequences: int, tokens: int) -> float:
        """Milliseconds until each of so many sequences, so long already, has one more token.

        At least; the longer of reading memory and computing, with what GPUs tell one another.
        """
        model = self.budget.cache.architecture
        read = self._weights_read(sequences) + sequences * tokens * self.budget.cache.token_bytes
        compute = 2 * model.active_parameters * sequences / self.degree / self.flops
        return 1000 * (max(read / self.bytes_per_second, compute) + self._told_seconds(sequences))

    def prompt_ms(self, tokens: int) -> float:
        """Milliseconds until a prompt of this length is read, at least."""
        model = self.budget.cache.architecture
        work = 2 * model.active_parameters * tokens
        work += 2 * len(model.layers) * model.heads * model.head_dim * tokens**2
        return 1000 * (work / self.degree / self.flops + self._told_seconds(tokens))

    def sequences_within(self, inter_token_ms: float, tokens: int, most: int) -> int:
        """Sequences at once, up to `most`, with which a token still comes in time."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.step_ms(middle, tokens) <= inter_token_ms:
                low = middle
            else:
                high = middle - 1
        return low

    def request_rps(self, sequences: int, mix: LengthMix) -> float:
        """Requests a second at most: prompts are read one by one, tokens come in a batch."""
        step = self.step_ms(sequences, mix.prompt_tokens + mix.output_tokens // 2)
        return 1000 / (self.prompt_ms(mix.prompt_tokens) + mix.output_tokens * step / sequences)

    def _weights_read(self, sequences: int) -> float:
        """Bytes of weights that a step reads on one GPU; with experts, those that anyone needs."""
        model = self.budget.cache.architecture
        if model.experts is None:
            return self.budget.weights
        experts = model.experts
        active = model.active_parameters / model.parameters
        untouched = (1 - experts.per_token / experts.count) ** sequences
        touched = (1 - untouched) * experts.count / experts.per_token
        always = (
            (active - (1 - active) / (experts.count / experts.per_token - 1)) if active < 1 else 1
        )
        each = active - always
        return self.budget.weights * min(1.0, always + each * touched)

    def _told_seconds(self, tokens: int) -> float:
        """Two sums over all GPUs in each layer."""
        if self.degree == 1:
            return 0.0
        model = self.budget.cache.architecture
        told = 2 * len(model.layers) * tokens * model.hidden * 2
        share = 2 * (self.degree - 1) / self.degree
        return told * share / (self.budget.gpu.link_gb_per_second * 1e9)


def roofline(budget: Budget) -> Roofline | None:
    """The bounds on a GPU; None where its speed is not known."""
    gpu, model = budget.gpu, budget.cache.architecture
    number: NumberType = "bf16" if gpu.capability >= (8, 0) else "fp16"
    if model.quantization in ("fp8", "fbgemm_fp8") and "fp8" in gpu.tflops:
        number = "fp8"
    speed = gpu.speed_tflops(number)
    if gpu.bandwidth_gb_per_second is None or speed is None:
        return None
    return Roofline(budget, gpu.bandwidth_gb_per_second * 1e9 * BANDWIDTH_RATIO, flops=speed * 1e12)
