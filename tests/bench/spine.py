"""What the event spine costs, on this machine, in one run.

    python -m tests.bench.spine [--songs 20] [--rounds 11] [--json FILE]

First with an instant model: processor time, Redis operations and bytes per window. Then with the real architecture at
its tiny size: the first chunk and the whole song through the pipeline (worker processes, a real redis-server with every
write synced), beside the same torch code called directly, in turn; medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from broker_schemas.connection import RedisBroker
from producer.follow import Chunk
from producer.submit import JobIds, Limits, Producer
from tests.chaos.conftest import LYRICS, Nursery
from tests.redis_server import RedisServer
from tests.stand_ins import request
from tests.tiny_checkpoint import tiny_checkpoint
from workers import run
from workers.models.family import load_family
from workers.settings import load
from workers.talker.frames import FrameHistory

FRAMES = 1100


def cpu_s(pid: int) -> float:
    """User and system seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def counters(client, workers: list[int]) -> dict[str, float]:
    info = await client.info()
    return {
        "broker_cpu_ms": 1000 * (info["used_cpu_sys"] + info["used_cpu_user"]),
        "worker_cpu_ms": 1000 * sum(cpu_s(pid) for pid in workers),
        "operations": info["total_commands_processed"],
        "bytes_in": info["total_net_input_bytes"],
        "bytes_out": info["total_net_output_bytes"],
    }


async def follow(producer: Producer, order) -> tuple[float, float, int]:
    """(seconds to the first chunk, to the end, chunks) of one job."""
    began, first, chunks = time.perf_counter(), 0.0, 0
    job = (await producer.submit(order, reserve_bytes=1, body=1)).id
    async for item in producer.jobs.follow(job):
        if isinstance(item, Chunk):
            chunks += 1
            first = first or time.perf_counter() - began
    return first, time.perf_counter() - began, chunks


async def per_window(producer: Producer, nursery: Nursery, songs: int) -> dict[str, float]:
    """Costs of the instant model's songs, and of idling for as long, per window."""
    workers = [nursery.start("talker"), nursery.start("acoustic")]
    await follow(producer, nursery.song(0, FRAMES))
    before, began, windows = await counters(producer.client, workers), time.perf_counter(), 0
    for seed in range(songs):
        windows += (await follow(producer, nursery.song(seed, FRAMES)))[2]
    took = time.perf_counter() - began
    after = await counters(producer.client, workers)
    await asyncio.sleep(took)
    idle = await counters(producer.client, workers)
    costs = {name: (after[name] - before[name]) / windows for name in before}
    return costs | {f"idle_{name}": (idle[name] - after[name]) / windows for name in before}


def direct(talker: run.LoadedTalker, acoustic: run.LoadedAcoustic, order) -> tuple[float, float]:
    """(seconds to the first chunk, to the end) of the same torch code, with nothing around it."""
    plan = load_family("minimax_music3").plan
    history = FrameHistory(
        "direct", order, order.params["max_new_tokens"], talker.model.lead, forced=np.empty((0, 0), np.int16)
    )
    began, first, state, windows, frames = time.perf_counter(), 0.0, {}, 0, []
    talker.runner.admit(history, talker.model.prompts(order))
    while True:
        if not history.reason:
            talker.runner.step()
            frames += history.waiting
            history.waiting, history.sent = [], history.frames
        done = plan.count(history.frames) if history.reason else plan.whole(history.frames)
        if windows < done:
            start, end = plan.bounds(windows, history.frames)
            last = bool(history.reason) and windows + 1 == done
            _, state = acoustic.model.window(
                np.stack(frames[start:end]), index=windows, last=last, seed=order.seed, state=state, check=lambda: None
            )
            windows += 1
            first = first or time.perf_counter() - began
            if last:
                talker.runner.free("direct")
                return first, time.perf_counter() - began


async def beside_direct(producer: Producer, nursery: Nursery, rounds: int) -> dict[str, float]:
    settings = load("minimax_music3", tiny_checkpoint())
    settings = replace(settings, talker=replace(settings.talker, max_model_len=2048))
    talker, acoustic = run.load_talker(settings), run.load_acoustic(settings)
    nursery.start("talker")
    nursery.start("acoustic")
    orders = [nursery.song(seed, 320) for seed in range(200)]
    long_enough = []
    for order in orders:  # songs that do not end before their first window
        if len(long_enough) == rounds + 1:
            break
        if (await follow(producer, order))[2] >= 2:
            long_enough.append(order)
    timed = []
    for order in long_enough:
        pipeline = (await follow(producer, order))[:2]
        timed.append((*pipeline, *direct(talker, acoustic, order)))
    names = ("pipeline_first_ms", "pipeline_total_ms", "direct_first_ms", "direct_total_ms")
    medians = {
        name: 1000 * statistics.median(values) for name, values in zip(names, zip(*timed[1:], strict=True), strict=True)
    }
    added = 1000 * statistics.median(row[0] - row[2] for row in timed[1:])
    return medians | {"added_to_first_chunk_ms": added, "rounds": len(timed) - 1}


async def measure(songs: int, rounds: int) -> dict[str, dict[str, float]]:
    results = {}
    for name, model in (("per window, instant model", "instant"), ("first chunk, tiny model", str(tiny_checkpoint()))):
        with tempfile.TemporaryDirectory() as folder:
            server = RedisServer(Path(folder))
            nursery = Nursery(server.url, model, Path(folder) / "workers.log")
            if model != "instant":
                params = {"instructions": "a quick waltz", "async_chunk": True}
                nursery.song = lambda seed, frames, params=params: request(
                    seed, frames, model="minimax_music3", input=LYRICS, params=params
                )
            client = RedisBroker(server.url).async_client()
            producer = Producer(client, ids=JobIds(b"bench"), limits=Limits(), name="bench")
            try:
                work = (
                    per_window(producer, nursery, songs)
                    if model == "instant"
                    else beside_direct(producer, nursery, rounds)
                )
                results[name] = await work
            finally:
                await client.aclose()
                nursery.close()
                server.kill()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--songs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = asyncio.run(measure(args.songs, args.rounds))
    for name, values in results.items():
        print(name)
        for measure_name, value in values.items():
            print(f"  {measure_name:28}{value:12.2f}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
