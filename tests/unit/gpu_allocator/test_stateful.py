"""Any history of grants, syncs, crashes, partitions and silence keeps the two promises about GPUs.

No GPU has two open leases, and none is granted while a process of an older lease may be on it.
The nodes here are honest about what runs, and otherwise as unlucky as hypothesis can make them.
"""

from dataclasses import dataclass, field
from datetime import timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lehr.training.ends import RunEnd
from services.gpu_allocator.domain import placement, sync
from services.gpu_allocator.domain.expiry import Amnesty, beat, expire
from services.gpu_allocator.domain.gpu import Gpu, GpuReport, GpuState
from services.gpu_allocator.domain.grant import AcquireGpus, TierFunding, grant
from services.gpu_allocator.domain.lease import Lease, LeasePhase, LeaseReport
from services.gpu_allocator.domain.node import Node, Sync
from services.gpu_allocator.domain.sync import Outcome
from services.gpu_allocator.domain.tier import NodeGpus
from tests.support.gpu_allocator import LIMITS, T0

TIER = "h100-80gb"
GPUS = 2
NODES = ("node_a", "node_b")
JOBS = ("job_1", "job_2")
ORDINALS = range(GPUS)


@dataclass
class Process:
    """A trainer on a node: what really computes, whatever anybody believes."""

    lease_id: str
    epoch: int
    ordinals: tuple[int, ...]
    phase: LeasePhase = LeasePhase.STARTING


@dataclass
class Machine:
    """An honest agent with a journal, and the processes under it."""

    name: str
    incarnation: int = 1
    boot: int = 1
    sequence: int = 0
    journal: dict[int, int] = field(default_factory=lambda: dict.fromkeys(ORDINALS, 0))
    running: dict[str, Process] = field(default_factory=dict)
    ended: dict[str, Process] = field(default_factory=dict)
    late: Outcome | None = None

    def report(self) -> Sync:
        self.sequence += 1
        known = [*self.running.values(), *self.ended.values()]
        return Sync(
            node_id=self.name,
            name=self.name,
            incarnation=self.incarnation,
            boot_id=f"boot-{self.boot}",
            sync_sequence=self.sequence,
            gpus=tuple(self._gpu(ordinal) for ordinal in ORDINALS),
            leases=tuple(
                LeaseReport(
                    lease_id=one.lease_id,
                    epoch=one.epoch,
                    phase=one.phase,
                    running_age=timedelta(seconds=1),
                    close_reason="COMPLETED",
                )
                for one in known
            ),
            is_draining=False,
        )

    def _gpu(self, ordinal: int) -> GpuReport:
        return GpuReport(
            ordinal=ordinal,
            tier=TIER,
            memory_bytes=80,
            device_id=f"GPU-{ordinal}",
            is_clear=not self.processes_on(ordinal),
            epoch=self.journal[ordinal],
            is_stuck=False,
        )

    def processes_on(self, ordinal: int) -> list[Process]:
        return [one for one in self.running.values() if ordinal in one.ordinals]

    def obey(self, outcome: Outcome) -> None:
        """Do what an answer says: end what is fenced, start what is new."""
        told = {one.lease_id for one in outcome.desired if not one.is_fenced}
        self.ended = {key: one for key, one in self.ended.items() if key in told}
        for one in outcome.desired:
            if one.is_fenced:
                self.running.pop(one.lease_id, None)
                for ordinal in one.ordinals:
                    self.journal[ordinal] = max(self.journal[ordinal], one.epoch)
            elif one.lease_id not in self.running and one.lease_id not in self.ended:
                newest = max((self.journal[ordinal] for ordinal in one.ordinals), default=0)
                if one.ordinals and one.epoch > newest:
                    for ordinal in one.ordinals:
                        self.journal[ordinal] = one.epoch
                    self.running[one.lease_id] = Process(one.lease_id, one.epoch, one.ordinals)


class AllocatorAndNodes(RuleBasedStateMachine):
    """The rows of the allocator as dictionaries, and machines that hear of them now and then."""

    @initialize()
    def begin(self) -> None:
        self.now = T0
        self.beat_time = T0
        self.outages: list[object] = []
        self.epoch = 0
        self.nodes = {name: Node(node_id=name, name=name) for name in NODES}
        self.gpus: dict[str, Gpu] = {}
        self.leases: dict[str, Lease] = {}
        self.attempts = dict.fromkeys(JOBS, 0)
        self.machines = {name: Machine(name) for name in NODES}
        self.granted: list[tuple[str, str, int]] = []
        for machine in self.machines.values():
            self._hear(machine.report())

    # What time does.

    @rule(seconds=st.sampled_from([1, 20, 70, 1300]), is_up=st.sampled_from([True, True, False]))
    def time_passes_and_silence_is_judged(self, seconds: int, is_up: bool) -> None:
        for _ in range(0, seconds, 5):
            self.now += timedelta(seconds=5)
            if is_up:
                self._beat()
        self.silence_is_judged()

    def _beat(self) -> None:
        if (outage := beat(self.beat_time, self.now)) is not None:
            self.outages.append(outage)
        self.beat_time = self.now

    def silence_is_judged(self) -> None:
        self._beat()
        amnesty = Amnesty(beat_time=self.beat_time, outages=tuple(self.outages))  # type: ignore[arg-type]
        for lease in list(self.leases.values()):
            self._save(expire(lease, amnesty=amnesty, limits=LIMITS, now=self.now))

    # What the scheduler does.

    @rule(job=st.sampled_from(JOBS), count=st.integers(1, GPUS))
    def a_job_acquires(self, job: str, count: int) -> None:
        if any(lease.job_id == job and lease.is_live for lease in self.leases.values()):
            return
        inventory = [
            NodeGpus(
                node_id=name,
                can_grant=True,
                gpus=tuple(gpu for gpu in self.gpus.values() if gpu.node_id == name),
            )
            for name in NODES
        ]
        chosen = placement.choose([TIER], count, inventory)
        if chosen is None:
            return
        self.epoch += 1
        self.attempts[job] += 1
        request = AcquireGpus(
            tenant="acme",
            project="default",
            job_id=job,
            attempt=self.attempts[job],
            run_id="run",
            gpu_count=count,
            tiers=(TierFunding(tier=TIER, funded_duration=timedelta(hours=1)),),
            deadline_duration=None,
        )
        lease, held = grant(
            request, chosen, lease_id=f"lease_{self.epoch}", epoch=self.epoch, now=self.now
        )
        for gpu in held:
            self._nobody_computes_on(gpu)
            assert self.gpus[gpu.gpu_id].state is GpuState.FREE
            assert self.gpus[gpu.gpu_id].epoch < gpu.epoch
            self.granted.append((gpu.gpu_id, job, gpu.epoch))
            self.gpus[gpu.gpu_id] = gpu
        self.leases[lease.lease_id] = lease

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def a_lease_is_stopped(self, data: st.DataObject) -> None:
        lease = self.leases[data.draw(st.sampled_from(sorted(self.leases)))]
        after = lease.stop(stop_time=None, reason=RunEnd.USER_STOPPED, now=self.now)
        if after.phase is LeasePhase.GRANTED and not after.is_offered:
            after = after.close(RunEnd.USER_STOPPED, "", now=self.now)
        self._save(after)

    # What nodes and networks do.

    @rule(
        name=st.sampled_from(NODES),
        answer=st.sampled_from(["in time", "in time", "in time", "late", "lost"]),
        times=st.integers(1, 2),
    )
    def a_node_syncs(self, name: str, answer: str, times: int) -> None:
        machine = self.machines[name]
        heard = machine.report()
        outcomes = [self._hear(heard) for _ in range(times)]
        if answer == "in time":
            machine.obey(outcomes[-1])
        elif answer == "late":
            machine.late = outcomes[-1]

    @rule(name=st.sampled_from(NODES))
    def a_late_answer_arrives(self, name: str) -> None:
        machine = self.machines[name]
        if machine.late is not None:
            machine.obey(machine.late)
            machine.late = None

    def _hear(self, heard: Sync) -> Outcome:
        node = self.nodes[heard.node_id]
        gpus = [gpu for gpu in self.gpus.values() if gpu.node_id == node.node_id]
        leases = [lease for lease in self.leases.values() if lease.node_id == node.node_id]
        is_repeat = node.is_repeat(heard)
        outcome = (
            sync.repeat(node, leases, gpus, heard)
            if is_repeat
            else sync.apply(node, leases, gpus, heard, now=self.now)
        )
        assert not is_repeat or list(outcome.gpus) == gpus
        self.nodes[node.node_id] = outcome.node
        self.leases |= {lease.lease_id: lease for lease in outcome.leases}
        self.gpus |= {gpu.gpu_id: gpu for gpu in outcome.gpus}
        return outcome

    @rule(name=st.sampled_from(NODES))
    def an_agent_dies_and_its_trainers_with_it(self, name: str) -> None:
        machine = self.machines[name]
        machine.incarnation += 1
        machine.sequence = 0
        machine.late = None
        machine.running.clear()
        machine.ended.clear()

    @rule(name=st.sampled_from(NODES))
    def a_machine_boots(self, name: str) -> None:
        self.an_agent_dies_and_its_trainers_with_it(name)
        self.machines[name].boot += 1

    @rule(
        name=st.sampled_from(NODES),
        phase=st.sampled_from([LeasePhase.RUNNING, LeasePhase.DRAINING, LeasePhase.CLOSED]),
    )
    def a_run_goes_on(self, name: str, phase: LeasePhase) -> None:
        machine = self.machines[name]
        for key, process in list(machine.running.items())[:1]:
            process.phase = phase
            if phase is not LeasePhase.RUNNING:
                machine.ended[key] = machine.running.pop(key)

    # What must hold at every instant.

    @invariant()
    def no_gpu_has_two_open_leases(self) -> None:
        holders: dict[tuple[str, int], str] = {}
        for lease in self.leases.values():
            for ordinal in lease.ordinals if lease.keeps_gpus and lease.is_live else ():
                assert holders.setdefault((lease.node_id, ordinal), lease.lease_id) == (
                    lease.lease_id
                )

    @invariant()
    def a_live_lease_that_keeps_gpus_has_them(self) -> None:
        for lease in self.leases.values():
            own = [gpu for gpu in self.gpus.values() if gpu.lease_id == lease.lease_id]
            assert not (lease.keeps_gpus and lease.is_live) or (
                len(own) == len(lease.ordinals) and all(gpu.state is GpuState.HELD for gpu in own)
            )

    @invariant()
    def epochs_grow_per_gpu_and_per_job(self) -> None:
        by_gpu: dict[str, int] = {}
        by_job: dict[str, int] = {}
        for gpu_id, job, epoch in self.granted:
            assert epoch > by_gpu.get(gpu_id, 0)
            assert epoch >= by_job.get(job, 0)
            by_gpu[gpu_id] = by_job[job] = epoch

    @invariant()
    def at_most_one_process_computes_on_a_gpu(self) -> None:
        for machine in self.machines.values():
            for ordinal in ORDINALS:
                assert len(machine.processes_on(ordinal)) <= 1

    @invariant()
    def a_free_gpu_is_really_free(self) -> None:
        for gpu in self.gpus.values():
            if gpu.state is GpuState.FREE:
                self._nobody_computes_on(gpu)

    def _nobody_computes_on(self, gpu: Gpu) -> None:
        assert not self.machines[gpu.node_id].processes_on(gpu.ordinal)

    def _save(self, after: Lease) -> None:
        before = self.leases[after.lease_id]
        self.leases[after.lease_id] = after
        if before.keeps_gpus and not after.keeps_gpus:
            self.gpus |= {
                gpu.gpu_id: gpu.after(after)
                for gpu in self.gpus.values()
                if gpu.lease_id == after.lease_id
            }

    def teardown(self) -> None:
        """When faults stop, every GPU comes back: nothing waits for ever."""
        if not hasattr(self, "machines"):
            return
        for _ in range(4):
            self.time_passes_and_silence_is_judged(seconds=70, is_up=True)
            for machine in self.machines.values():
                for key in list(machine.running):
                    machine.running[key].phase = LeasePhase.CLOSED
                    machine.ended[key] = machine.running.pop(key)
                machine.obey(self._hear(machine.report()))
        waiting = [gpu for gpu in self.gpus.values() if gpu.state is not GpuState.FREE]
        running = {one for machine in self.machines.values() for one in machine.running}
        assert {gpu.lease_id for gpu in waiting} <= running


AllocatorAndNodes.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestAllocatorAndNodes = AllocatorAndNodes.TestCase
