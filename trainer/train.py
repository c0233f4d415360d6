"""The training loop, top to bottom: drafter, resume, steps, checkpoints."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from trainer import checkpoint
from trainer.attention import choose_backend
from trainer.clock import Clock
from trainer.compile import CompileCounts, CompiledDrafter, compile_strictly
from trainer.config import Config
from trainer.display import open_display
from trainer.errors import TrainerError
from trainer.flops import peak_flops
from trainer.model import Drafter, DrafterShape
from trainer.optimizer import DrafterOptimizer
from trainer.process import catch_stop, device_name, peak_memory
from trainer.resume import Start, agree, fresh_state, gather_generators, restore
from trainer.runlog import Sink, open_sinks
from trainer.source import Plan, Source
from trainer.step import RowRunner, Summary, Tally
from trainer.topology import Group, Place, choose_dtype

logger = logging.getLogger("trainer")


def train(config: Config, start: Start, place: Place, source: Source, group: Group) -> int:
    """One drafter's whole run."""
    facts, directory = source.facts, Path(config.checkpoint.dir)
    if place.leads:
        for line in facts.report:
            logger.info(line)
    runner, optimizer = build(config, place, source)
    drafter, me = runner.drafter, place.rank
    state = fresh_state(config, drafter.shape, facts)
    generators: dict[str, Tensor] = {}
    if place.leads:
        state, generators = restore(config, start, state, drafter, optimizer, directory)
    state = agree(state, generators, place, group, drafter, optimizer)
    plan = Plan(facts.rows, config.rows_per_step(), config.train.max_steps, state.step, state.row)
    logger.info("plan: %d steps of %d rows; epochs: %s", plan.total_steps, plan.rows_per_step, plan.epochs)
    with ExitStack() as stack:
        stop = stack.enter_context(catch_stop())
        with group.turn():
            warm_up(runner, optimizer, facts.row_lengths)
        stack.enter_context(source).start(plan)
        group.begin(state.step, state.row)
        sinks: list[Sink] = []
        if place.leads:
            sinks = [*open_sinks(config, directory, state.step), open_display(config, plan.total_steps)]
        for sink in sinks:
            stack.callback(sink.close)
        if place.leads and state.step >= plan.total_steps:
            logger.info(
                "all %d steps are done; a larger train.epochs or train.max_steps goes on, --fresh starts anew",
                plan.total_steps,
            )
        clock = Clock(peak_flops(device_name(place.device)), place, plan.rows_per_step, plan.total_steps)
        stopping = False
        while state.step < plan.total_steps and not stopping:
            tally = Tally(drafter.shape, facts, place.targets, place.drafters, me)
            mine = state.row + (me - state.row) % place.drafters
            for row in range(mine, state.row + plan.rows_per_step, place.drafters):
                supply = source.next()
                anchors = runner.draw(supply.features.batch)
                totals = runner.run(supply.features, anchors)
                optimizer.collect()
                tally.add(supply, anchors, totals, row % place.targets, own_target=place.alone)
            summary = sum_up(tally, group, source, runner, place, stop_asked=stop.asked)
            denominator = float(summary.totals.denominator)
            norm, rate = optimizer.step(state.step, plan.total_steps, denominator, group.sum)
            state = advance(state, plan, summary)
            record = clock.record(state, summary, norm, rate, runner)
            # All drafters read it from the same sum, so that all of them stop after the same step.
            stopping = summary.counts["stop"] > 0
            last = stopping or state.step == plan.total_steps
            if last or state.step % config.train.log_every == 0:
                for sink in sinks:
                    sink.write(record)
            if last or (config.checkpoint.every and state.step % config.checkpoint.every == 0):
                save(config, directory, state, drafter, optimizer, place, group)
                clock.skip()
        if stopping:
            group.stop()
            if place.leads:
                logger.warning("asked to stop: the run ends with the checkpoint of step %d", state.step)
        if place.leads and (advice := clock.advice()):
            logger.info(advice)
    return 0


def build(config: Config, place: Place, source: Source) -> tuple[RowRunner, DrafterOptimizer]:
    """The drafter with fresh weights, what runs it, and its optimizer."""
    facts, device = source.facts, place.device
    dtype = choose_dtype(config.train.dtype, device)
    enabled = config.train.compile if config.train.compile is not None else device.type == "cuda"
    compile_strictly()
    shape = DrafterShape.of(config.model, facts.shape)
    with torch.device(device):
        drafter = Drafter(shape).to(dtype)
    drafter.init_weights(config.train.seed)
    backend = choose_backend(config.train, device)
    # Tensors as they come from another rank: with the target's own parameters the loss is another graph to torch, and
    # what one layout compiled would be compiled anew in the next.
    embedding, head = (tensor.detach().to(device, dtype) for tensor in source.head())
    runner = RowRunner(
        drafter=drafter,
        compiled=CompiledDrafter(drafter, enabled=enabled, shapes=2 * len(facts.row_lengths), flex=backend == "flex"),
        embedding=embedding,
        head=embedding if facts.shape.tied else head,
        backend=backend,
        anchors=config.model.anchors,
        mask_token_id=facts.mask_token_id,
        seed=config.train.seed,
        gamma=config.gamma(),
    )
    parameters = sum(parameter.numel() for parameter in drafter.parameters())
    logger.info(
        "drafter: %.1f M parameters in %s on %s; attention: %s; %s",
        parameters / 1e6,
        str(dtype).removeprefix("torch."),
        device_name(device),
        "compiled flex_attention" if backend == "flex" else "SDPA with the dense mask",
        "compiled whole" if enabled else "not compiled",
    )
    return runner, DrafterOptimizer(drafter, config.train)


def warm_up(runner: RowRunner, optimizer: DrafterOptimizer, lengths: tuple[int, ...]) -> None:
    """Compiles every shape before step 0; from then on a recompile is an error."""
    if not runner.compiled.compiles:
        return
    for length in lengths:
        before = CompileCounts.now()
        seconds = runner.warm(length)
        after = CompileCounts.now()
        logger.info(
            "compiled rows of %d tokens in %.1f s: %d cache hits, %d misses",
            length,
            seconds,
            after.hits - before.hits,
            after.misses - before.misses,
        )
    optimizer.discard()
    runner.compiled.freeze()


def sum_up(
    tally: Tally, group: Group, source: Source, runner: RowRunner, place: Place, *, stop_asked: bool
) -> Summary:
    """Adds up the step over all drafters."""
    counts = CompileCounts.now()
    tally.counts["stop"] = float(stop_asked or (place.leads and group.stop_asked()))
    tally.counts["recompiles"] = runner.compiled.recompiles
    tally.counts["hits"], tally.counts["misses"] = counts.hits, counts.misses
    tally.own["q_hs"] = source.q_hs()
    tally.own["memory"] = peak_memory(place.device)
    vector = tally.pack()
    group.sum(vector)
    return tally.unpack(vector)


def advance(state: checkpoint.State, plan: Plan, summary: Summary) -> checkpoint.State:
    """The state after one more step."""
    row = state.row + plan.rows_per_step
    epoch, index = plan.locate(row)
    samples = state.samples + round(summary.counts["documents"])
    return msgspec.structs.replace(
        state, step=state.step + 1, row=row, epoch=epoch, batch_index=index, samples=samples
    )


def save(
    config: Config,
    directory: Path,
    state: checkpoint.State,
    drafter: Drafter,
    optimizer: DrafterOptimizer,
    place: Place,
    group: Group,
) -> None:
    """Writes, stamps and prunes, on the leading rank. TrainerError where the drafters have drifted apart."""
    check_equal(drafter, place, group)
    generators = gather_generators(place, group)
    if not place.leads:
        return
    tensors = {
        checkpoint.MODEL: drafter.state_dict(),
        checkpoint.OPTIMIZER: optimizer.state(),
        checkpoint.RNG: generators,
    }
    path = checkpoint.save(directory, state, tensors)
    if config.checkpoint.stamp:
        checkpoint.stamp(path)
    checkpoint.prune(directory, config.checkpoint.keep_last, config.checkpoint.keep_every)
    logger.info("saved %s", path)


def check_equal(drafter: Drafter, place: Place, group: Group) -> None:
    """TrainerError unless all drafters hold the same weights: gradients of different models add up to nonsense."""
    sums = torch.zeros(place.drafters, dtype=torch.float64)
    sums[place.rank] = sum(float(p.detach().double().abs().sum()) for p in drafter.parameters())
    group.sum(sums)
    if len(set(sums.tolist())) > 1:
        raise TrainerError(f"the drafters' weights differ: their absolute sums are {sums.tolist()}")
