"""Requests for each second of a processor: the gateway's path, LiteLLM's proxy, and nginx.

All in front of the same OpenAI-style server, whose own cost is not counted. The gateway and nginx
speak TLS to the client; LiteLLM does not have to.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.bench import litellm as lite
from loadtest.bench.bodies import chat_request
from loadtest.bench.load import Target
from loadtest.bench.measure import cpu_per_request, interleaved
from loadtest.bench.nginx import find_nginx, nginx, nginx_version
from loadtest.bench.our_path import PATH, beside_a_bare_one
from loadtest.bench.ratios import Measure, Part, Tell, over_rounds, ratio_of
from loadtest.bench.servers import Server, free_ports
from loadtest.bench.sizes import Sizes
from serving.errors import InfrastructureError
from serving.local.engines import find_engines

CONNECTIONS: Final = 32
CHAT_PATH: Final = "/v1/chat/completions"
WARM_REQUESTS: Final = 32
NAMES: Final = {
    "litellm": "requests_per_cpu_vs_litellm",
    "nginx": "requests_per_cpu_vs_nginx",
    "bare_envoy": "requests_per_cpu_vs_bare_envoy",
}


@dataclass(frozen=True)
class Side:
    """A proxy, and what it is asked in each round."""

    server: Server
    target: Target
    request: bytes
    count: int

    def warm(self) -> None:
        """Ask it a little, so that connections and caches are there."""
        few = min(WARM_REQUESTS, self.count)
        cpu_per_request(self.server, self.target, [self.request] * few, CONNECTIONS)

    def cost(self, _: int) -> float:
        """Microseconds of processors for each request."""
        requests = [self.request] * self.count
        return cpu_per_request(self.server, self.target, requests, CONNECTIONS)


@contextmanager
def ready_proxies(folder: Path, sizes: Sizes, tell: Tell) -> Iterator[Measure]:
    """Measures how many requests each proxy passes on for a second of a processor."""
    engines, skipped = find_engines(), dict[str, str]()
    ports = free_ports("stub", "ours", "ours-inner", "ours-admin", "bare", "nginx", "litellm")
    with ExitStack() as stack:
        enter = stack.enter_context
        ours, bare, certificate = enter(beside_a_bare_one(engines, folder, ports))
        tls, count = ours.target.tls, sizes.proxy_requests
        chat = chat_request(CHAT_PATH, {"host": "127.0.0.1"})
        own = chat_request(PATH, ours.headers)
        sides = {
            "ours": Side(ours.server, ours.target, own, count),
            "bare_envoy": Side(bare, Target(bare.port, tls), chat, count),
        }
        versions = {}
        program = find_nginx()
        if program:
            upper = enter(nginx(program, folder, ports["nginx"], ports["stub"], certificate))
            sides["nginx"] = Side(upper, Target(upper.port, tls), chat, count)
            versions["nginx"] = nginx_version(program)
        else:
            skipped[NAMES["nginx"]] = "nginx is not installed; on Debian: apt-get install nginx"
        try:
            proxy = _start_litellm(stack, folder, ports, sizes, tell)
        except InfrastructureError as error:
            skipped[NAMES["litellm"]] = str(error)
        else:
            request, target = chat_request(CHAT_PATH, proxy.headers), Target(proxy.server.port)
            sides["litellm"] = Side(proxy.server, target, request, sizes.litellm_requests)
            versions["litellm"] = lite.installed_version()
        yield lambda: _measure(sides, sizes.proxy_rounds, skipped, versions, tell)


def _measure(
    sides: Mapping[str, Side],
    rounds: int,
    skipped: Mapping[str, str],
    versions: Mapping[str, str],
    tell: Tell,
) -> Part:
    tell(f"requests for each second of a processor: {', '.join(sides)}")
    for side in sides.values():
        side.warm()
    costs = interleaved(rounds, *(side.cost for side in sides.values()))
    found = dict(zip(sides, costs, strict=True))
    return Part(
        ratios={
            # Costs the other way round: requests for a second are its inverse.
            name: ratio_of(found[peer], found["ours"])
            for peer, name in NAMES.items()
            if peer in found
        },
        absolute={
            f"requests_per_cpu_second_{name}": over_rounds([1e6 / cost for cost in each])
            for name, each in found.items()
        },
        skipped=skipped,
        versions=versions,
    )


def _start_litellm(
    stack: ExitStack, folder: Path, ports: Mapping[str, int], sizes: Sizes, tell: Tell
) -> lite.LiteLlm:
    if not lite.is_installed():
        if not sizes.installs:
            raise InfrastructureError("litellm is not installed; the full run installs it")
        tell("installing litellm into an environment of its own")
        lite.install()
    tell("litellm starts")
    return stack.enter_context(lite.litellm(folder, ports["litellm"], ports["stub"]))
