"""Seeded random sequences of lines (see `lines`), in the manner of the conformance vectors.

A sequence plays up to three producers that report, retry, die and come back as zombies, on a job that is deployed
again and again. The generator runs the model beside it to see where they are, so that most of what it makes them say
makes sense and goes deep. But a sequence is a list of plain lines, and any part of it is one too: that is what makes a
failing one easy to cut down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tracker.contract.status import JobStatus

from .lines import JOB, START, Driver, Line
from .reference import ReferenceTracker

GRAPHS: list[list[list[Any]]] = [
    [["a", []]],
    [["a", ["b"]], ["b", []]],
    [["a", ["b"]], ["b", ["b", "c"]], ["c", []]],
    [["a", ["b"]], ["b", ["c"]], ["c", ["a", "d"]], ["d", []]],
    [["a", ["c"]], ["b", ["c"]], ["c", ["st"]], ["st", ["d"]], ["d", []]],
    [["z", ["y", "x"]], ["x", ["w"]], ["y", ["w"]], ["w", []]],
]
SECOND = 10**9
SCOPES = ["t0", "t1", "t2"]


@dataclass
class _Producer:
    name: str
    mode: str
    runs: int = 0
    run: str = ""
    open: bool = False
    seals: bool = False
    epoch: int = 0  # the one it works on
    committed: int = -1
    staged: list[int] = field(default_factory=list)
    units: dict[int, list[list[str]]] = field(default_factory=dict)  # by epoch: those of each report
    said: list[Line] = field(default_factory=list)  # reports worth repeating


class Generator:
    """One sequence.

    Args:
        seed: the same seed gives the same lines.
    """

    def __init__(self, seed: int) -> None:
        self.random = r = Random(seed)
        self.pausing = Random(f"the pauses of {seed}")
        self.ending = Random(f"what no promise ends in {seed}")
        self.silencing = Random(f"the silent fronts of {seed}")
        self.hedging = Random(f"the closes of {seed} that might have forgotten a front")
        self.naming = Random(f"the identities of {seed}")
        dating = Random(f"the end times of {seed}")
        #: microseconds, from which end times count: those near the tracker's clock, or soon after 1970
        self.since = START // 1000 + dating.choice([-30, 10**6, 10**7]) if dating.random() < 0.2 else 0
        self.far = dating.choice([0, 40 * 86_400 * 10**6]) if self.since else 0  # by which some lie further ahead
        self.pauses = seed % 3 == 2  # the others' sequences stay as they were, and show what single ones have shown
        self.lines: list[Line] = []
        self.model = ReferenceTracker("model")
        self.driver = Driver(self.model)
        self.timed = r.random() < 0.4  # whether time passes and durations are set
        self.tiny = r.random() < 0.4  # few substreams and labels: what is rare elsewhere happens often
        self.small_labels = self.tiny or r.random() < 0.25
        self.ids = r.random() < 0.4
        self.graph = r.choice(GRAPHS[:3] if self.tiny else GRAPHS)
        self.fronts = [f"f{i}" for i in range(r.choice([0, 1, 1, 1, 2, 2, 3]))]
        self.lag = {front: r.choice([0, 0, 10, 30]) for front in self.fronts}
        self.ordering = r.choice(["NONE", "NONE", "SCOPE", "GLOBAL"])
        self.progress = r.random() < 0.5
        self.durations = self._durations() if self.timed else {}
        self.endless = r.choice([0.0, 0.15, 0.15, 0.5])  # the share of substreams that have no end time
        self.deployments = 1
        self.drains = 0
        self.unit = 0
        self.time = 0  # how far the fronts are
        self.flight: list[list[Any]] = []  # [scope, name, end time, segment, label]
        immediate = r.choice([0.0, 0.0, 0.3, 0.5, 1.0])
        self.producers = [
            _Producer(name, "IMMEDIATE" if r.random() < immediate else "STAGED")
            for name in "pqr"[: r.choice([1, 2, 2, 2, 3])]
        ]
        self.sealing = r.choice([0.0, 0.0, 0.5, 1.0])
        self.owners = {front: r.choice(self.producers).name for front in self.fronts}
        self.calm = r.choice([0.3, 0.6, 0.9])  # how seldom something other than reporting happens
        self.numbers: dict[tuple[str, str, str, str], int] = {}  # expected, by front, segment and substream
        self.leads = r.random() < 0.5  # whether fronts feed some segments only
        self.front_segments = self._front_segments(self.fronts, self.graph)
        self.state = self._some_state(self.graph)
        self.committed_ends = r.random() < (0.5 if immediate == 0.0 else 0.1)
        self.counts = r.random() < 0.4  # whether fronts say how many elements there will be
        self.taste: dict[str, float] = {}  # what this sequence has more or less of than others

    def sequence(self, length: int) -> list[Line]:
        """Generate about so many lines."""
        r = self.random
        if r.random() < 0.15:
            self._add(
                do="drain", deployment=r.choice(["d1", "d2"]), drain_id="early", **self._timeout(), **self._mode()
            )
        if r.random() < 0.05:
            self._open(r.choice(self.producers))
        self._add_define()
        for producer in self.producers:
            if r.random() < 0.9:
                self._open(producer)
        while len(self.lines) < length:
            if r.random() < self.calm:
                self._work(r.choice(self.producers))
            else:
                self._something_else()
            if self.timed and r.random() < 0.35:
                self._add(do="tick", wait=r.choice([1, 2, 3, 5, 8, 13, 30]) * SECOND)
        if r.random() < 0.5:
            self._drain_through()
        return self.lines

    def _add(self, **line: Any) -> Line:
        if self.timed and self.random.random() < 0.3:
            line["wait"] = line.get("wait", 0) + self.random.choice([1, 1, 2, 4]) * SECOND
        self.lines.append(line)
        self.driver.run(line)
        if JOB in self.model.jobs():
            self._look(self.model.job_status(JOB))
        return line

    def _choose(self, weights: dict[str, float]) -> str:
        """Choose one of some kinds, by weights that hang on the sequence's taste, too."""
        for kind in weights:
            if kind not in self.taste:
                self.taste[kind] = self.random.choice([0, 0.3, 1, 1, 1, 4])
        likely = [weight * self.taste[kind] + weight * 1e-6 for kind, weight in weights.items()]
        return self.random.choices(list(weights), likely)[0]

    def _look(self, job: JobStatus) -> None:
        """See what has become of the job and its producers."""
        self.graph = [[name, list(feeds)] for name, feeds in job.spec.segments.items()]
        self.fronts = list(job.spec.fronts)
        fed = job.spec.fronts.items() if isinstance(job.spec.fronts, Mapping) else ()
        self.front_segments = [[front, list(segments)] for front, segments in fed if segments]
        self.state = list(job.spec.state_segments)
        self.committed_ends = job.spec.committed_ends
        self.ordering, self.progress = job.spec.ordering.upper(), job.spec.progress
        self.owners |= {front.front: front.producer for front in job.fronts if front.producer}
        statuses = {status.producer: status for status in job.producers}
        for p in self.producers:
            status = statuses.get(p.name)
            p.open = status is not None and not status.closed
            p.staged = list(status.staged_epochs) if status else []
            p.committed = -1 if status is None or status.committed_epoch is None else status.committed_epoch
            if status:
                p.run = status.run
                p.epoch = max(p.epoch, p.committed + 1)

    def _durations(self) -> dict[str, int]:
        kinds = ["stall_after", "expire_after", "idle_after", "retention", "remember"]
        durations = {kind: self.random.choice([3, 8, 20, 60]) * SECOND for kind in kinds if self.random.random() < 0.6}
        return durations | self._rules()

    def _rules(self) -> dict[str, int]:
        """Return rules that end substreams without a promise, of a random stream of its own."""
        r = self.ending
        rules: dict[str, int] = {"expire_expected": r.random() < 0.5}
        if r.random() < 0.3:
            rules |= {"deadline_by_event_time": True, "deadline": r.choice([1, 10, 20, 50]) * 1000}
        elif r.random() < 0.3:  # their end times lie just after 1970
            rules["deadline"] = START + r.choice([3, 20, 60, 200]) * SECOND
        if r.random() < 0.8:
            rules |= {"threshold_ppm": r.choice([1, 1, 500_000]), "threshold_after": r.choice([2, 5]) * SECOND}
        if r.random() < 0.3:
            rules["scope_idle_after"] = r.choice([8, 20, 60]) * SECOND
        if self.silencing.random() < 0.3:
            rules["front_idle_after"] = self.silencing.choice([3, 8, 20]) * SECOND
        return rules

    def _timeout(self) -> dict[str, int]:
        return {"timeout": self.random.choice([5, 20]) * SECOND} if self.timed and self.random.random() < 0.5 else {}

    # ------------------------------------------------------------ reporting

    def _work(self, p: _Producer) -> None:
        r = self.random
        if not p.open and r.random() < 0.9:
            self._open(p)
            return
        kinds: dict[str, float] = {
            "report": 50,
            "end_epoch": 18,
            "repeat": 6,
            "partly_repeat": 4,
            "bad_report": 4,
            "promise_only": 4,
            "manifest_gone_wrong": 3,
        }
        getattr(self, "_" + self._choose(kinds))(p)

    def _report(self, p: _Producer, **said: Any) -> Line:
        r = self.random
        self.unit += 1
        units = [f"u{self.unit}"] + ([f"u{self.unit}x"] if r.random() < 0.25 else [])
        commit = r.random() < 0.2
        if commit and r.random() < 0.2:
            units = []
        line: Line = {
            "do": "report",
            "producer": p.name,
            "run": p.run,
            "epoch": max(0, p.epoch + r.choices([0, 1, 2, -1], [90, 6, 2, 2])[0]),
            "units": units,
            "entries": self._entries() if "entries" not in said else [],
            "promises": self._promises(p) if r.random() < 0.35 else [],
            "commit": commit,
        } | said
        if self.counts and self.naming.random() < 0.4:
            mine = {key[0] for key in self.numbers if self.owners.get(key[0]) == p.name}
            line["promises"] = [*line["promises"], *map(self._identities, sorted(mine))]
        if self.ids:
            line |= {"ids": r.random() < 0.6, "want_ids": r.random() < 0.6}
            if r.random() < 0.02:
                line["log"] = "other"
        self._add(**line)
        p.units.setdefault(line["epoch"], []).append(line["units"])
        p.said.append(line)
        return line

    def _entries(self) -> list[list[Any]]:
        r = self.random
        segments = [name for name, _ in self.graph]
        entries: list[list[Any]] = []
        for _ in range(r.choice([0, 0, 1, 1, 1] if self.tiny else [0, 1, 1, 2, 3])):
            scope, name, end_time = self._substream()
            segment, label, sent = r.choice(segments), self._label(), 1 if r.random() < 0.95 else 2
            entries.append([scope, name, end_time, segment, label, sent, 0])
            self.flight.extend([scope, name, end_time, segment, label if i == 0 else 0] for i in range(sent))
        r.shuffle(self.flight)
        arrived = min(len(self.flight), r.choice([0, 1, 2, 4, 8]))
        entries += [[*self.flight.pop(), 0, 1] for _ in range(arrived)]
        if r.random() < 0.02 and entries:
            entries.append(r.choice(entries))  # doubled
        if r.random() < 0.02 and self.flight:
            self.flight.pop()  # lost
        return entries

    def _substream(self) -> tuple[str, str, int | None]:
        """Return a tenant's window somewhere around where the fronts are."""
        r = self.random
        window = max(0, self.time // 10 + r.choice([-3, -1, 0, 0, 1, 1, 2, 3, 5]))
        return self._numbered(6 * window + r.randrange(1 if self.tiny else 5))

    def _numbered(self, number: int) -> tuple[str, str, int | None]:
        endless = number % 2 == 1 and number % 100 < 100 * self.endless
        return (
            SCOPES[number % 3],
            f"w{number}",
            None if endless else self.since + 10 * (number // 6 + 1) + self.far * (number % 7 == 6),
        )

    def _label(self) -> int:
        if self.small_labels:
            return self.random.randrange(1 if self.tiny else 4)
        return self.random.getrandbits(64)

    def _promises(self, p: _Producer) -> list[list[Any]]:
        r = self.random
        promises: list[list[Any]] = []
        mine = [front for front in self.fronts if self.owners.get(front) == p.name]
        kinds = {"frontier": 4, "scope_frontier": 2, "close_by_name": 3, "finish": 0.6, "no_promise": 1}
        if self.counts:
            kinds["expect"] = 8
        for front in mine if r.random() < 0.97 else self.fronts:
            self.time += r.choice([0, 0, 5, 10]) if front == self.fronts[-1] else 0
            time = self.since + self.time - self.lag.setdefault(front, r.choice([0, 0, 10, 30]))
            match self._choose(kinds):
                case "frontier":
                    promises.append(["frontier", front, None, time + r.choice([-20, -10, 0, 0, 0, 10])])
                case "scope_frontier":
                    promises.append(["frontier", front, r.choice(SCOPES), time + r.choice([-10, 0, 0, 10, 20])])
                case "close_by_name":
                    promises.append(["close", front, *self._substream()])
                case "finish":
                    promises.append(["finish", front])
                case "expect":
                    promises += [self._expectation(front) for _ in range(r.choice([1, 1, 2, 4]))]
        if r.random() < (0.2 if self.fronts else 0.8):
            hedged = [True] if self.pauses and self.hedging.random() < 0.3 else []
            promises.append(["close", "", *self._substream(), *hedged])
        if not self.fronts and r.random() < 0.5:
            self.time += 5
        return promises

    def _expectation(self, front: str) -> list[Any]:
        """Return a front's number of elements of a substream: mostly the same each time, and one that comes true."""
        r = self.random
        scope, name, end_time = self._substream()
        segment = r.choice([segment for segment, _ in self.graph]) if r.random() < 0.3 else self.graph[0][0]
        there = self.model.substreams(JOB) if JOB in self.model.jobs() else []  # the job may have been deleted
        known = (s for s in there if (s.scope, s.name) == (scope, name))
        sent = next((g.sent for s in known for g in s.segments if g.segment == segment), 0)
        number = self.numbers.setdefault((front, segment, scope, name), max(0, sent + r.choice([-1, 0, 0, 0, 1, 2])))
        if r.random() < 0.2:
            number = max(0, number + r.choice([-1, 1]))
        revises = r.random() < 0.3
        if self.naming.random() < 0.3:
            return ["expect", front, scope, name, end_time, segment, number, revises, self.naming.randrange(4)]
        return ["expect", front, scope, name, end_time, segment, number, *([True] if revises else [])]

    def _identities(self, front: str) -> list[Any]:
        """Return identities of elements: of so few kinds that those of a substream often are the promised ones."""
        _, segment, scope, name = self.naming.choice([key for key in self.numbers if key[0] == front])
        end_time = self._numbered(int(name[1:]))[2]
        return ["identities", front, scope, name, end_time, segment, self.naming.randrange(4)]

    def _end_epoch(self, p: _Producer) -> None:
        r = self.random
        kept = [unit for units in p.units.get(p.epoch, []) if r.random() < 0.85 for unit in units]
        manifest = {"units": kept} if r.random() < 0.4 or p.seals else {}
        if (p.seals and r.random() < 0.9) or r.random() < 0.05:
            self._add(do="commit", producer=p.name, run=p.run, epoch=p.epoch, seal=True, **manifest)
            manifest = {"units": kept} if r.random() < 0.2 else {}
            if r.random() < 0.2:
                self._report(p, epoch=p.epoch)
        if r.random() < 0.9:
            promises = {}
            if r.random() < 0.3:
                promises = {"promises": [said for said in self._promises(p) if said[0] != "close"]}
            self._add(do="commit", producer=p.name, run=p.run, epoch=p.epoch, **manifest, **promises)
        p.epoch += 1

    def _repeat(self, p: _Producer) -> None:
        """Repeat a report, as a task's retry or a zombie does."""
        r = self.random
        if p.said:
            line = _again(r.choice(p.said[-4:] if r.random() < 0.7 else p.said))
            if r.random() < 0.5:
                line["run"] = p.run
            if r.random() < 0.2:
                line["commit"] = True
            self._add(**line)

    def _partly_repeat(self, p: _Producer) -> None:
        if p.said:
            line = _again(self.random.choice(p.said[-3:]))
            self.unit += 1
            self._add(**(line | {"run": p.run, "units": [*line["units"], f"more{self.unit}"]}))

    def _bad_report(self, p: _Producer) -> None:
        r = self.random
        scope, name, end_time = self._substream()
        entry = [scope, name, end_time, self.graph[0][0], self._label(), 1, 0]
        bad: list[dict[str, Any]] = [
            {"entries": [[*entry[:3], "nowhere", *entry[4:]]]},
            {"entries": [[scope, name, 777, *entry[3:]]]},
            {"entries": [entry], "promises": [["finish", "nobody"]]},
            {"units": [], "commit": False},
            {"units": ["twice", "twice"]},
            {"promises": [["close", "", scope, name, 778]]},
            {"producer": "nobody"},
            {"run": "never"},
            {"entries": [entry, [scope, name, 779, *entry[3:]]]},
            {"entries": [[scope, name, r.choice([-1, 1]) * (2**61 + 1), *entry[3:]]]},
            {"entries": [entry], "epoch": r.choice([2**62, 2**64 - 1])},
            {"promises": [["expect", "nobody", scope, name, end_time, entry[3], 1]]},
            {"promises": [["expect", front, scope, name, end_time, "nowhere", 1] for front in self.fronts[:1]]},
            {"promises": [["expect", front, scope, name, 776, entry[3], 1] for front in self.fronts[:1]]},
            {"promises": [["expect", front, scope, name, end_time, entry[3], 2**50] for front in self.fronts[:1]]},
        ]
        self.unit += 1
        line: Line = {"do": "report", "producer": p.name, "run": p.run, "epoch": p.epoch, "units": [f"bad{self.unit}"]}
        line |= {"entries": [], "promises": [], "commit": False}
        self._add(**(line | self.random.choice(bad)))

    def _promise_only(self, p: _Producer) -> None:
        promises = [said for said in self._promises(p) if said[0] != "close" or self.random.random() < 0.1]
        self._add(do="commit", producer=p.name, run=p.run, promises=promises)

    def _manifest_gone_wrong(self, p: _Producer) -> None:
        units = [unit for units in p.units.get(p.epoch, []) for unit in units]
        wrong: list[dict[str, Any]] = [
            {"units": [*units, "never"]},
            {"units": units[:-1]},
            {"units": []},
            {"units": [], "seal": True, "promises": [["finish", "f0"]]},
            {"units": units[1:], "seal": True},
        ]
        line = {"do": "commit", "producer": p.name, "run": p.run, "epoch": p.epoch} | self.random.choice(wrong)
        if self.random.random() < 0.1:
            del line["epoch"]
        self._add(**line)

    # ------------------------------------------------------------ everything else

    def _something_else(self) -> None:
        of_a_producer: dict[str, float] = {
            "open": 20,
            "close": 9,
            "die_and_come_back": 14,
            "forget": 2,
            "open_wrongly": 3,
        }
        of_the_job: dict[str, float] = {
            "flush": 12,
            "redeploy": 12,
            "add_define": 2,
            "odd_define": 4,
            "ask_for_drain": 5,
            "cancel_drain": 7,
            "drain_through": 4,
            "hand_over": 6,
            "abandon": 4,
            "finish_front": 3,
            "subscribe": 5,
            "acknowledge": 7,
            "unsubscribe": 2,
            "delete": 0.5,
            "recover": 2 if self.timed else 0,
        }
        kind = self._choose(of_a_producer | of_the_job)
        if kind in of_a_producer:
            getattr(self, "_" + kind)(self.random.choice(self.producers))
        else:
            getattr(self, "_" + kind)()

    def _open(self, p: _Producer, resume_epoch: int | None = None) -> None:
        r = self.random
        if p.open and r.random() < 0.15:
            self._add(do="open", producer=p.name, run=p.run, mode=p.mode)  # again
            return
        p.runs += 1
        p.seals = r.random() < self.sealing
        line: Line = {"do": "open", "producer": p.name, "run": f"{p.name}{p.runs}", "mode": p.mode}
        if p.seals:
            line["seals"] = True
        if resume_epoch is None and r.random() < 0.3:
            resume_epoch = max(p.committed + 1, p.epoch + r.choice([-1, 0, 0, 0, 1]))
        if resume_epoch is not None:
            line["resume_epoch"] = p.epoch = resume_epoch
        self._add(**line)

    def _open_wrongly(self, p: _Producer) -> None:
        wrong: list[dict[str, Any]] = [
            {"run": p.run or "x", "mode": "STAGED" if p.mode == "IMMEDIATE" else "IMMEDIATE"},
            {"run": f"{p.name}{max(1, p.runs - 1)}"},
            {"run": f"{p.name}r{self.unit}", "resume_epoch": 0},
        ]
        line = {"do": "open", "producer": p.name, "mode": p.mode}
        self._add(**(line | self.random.choice(wrong)))

    def _close(self, p: _Producer) -> None:
        line: Line = {"do": "close", "producer": p.name, "run": p.run}
        if self.random.random() < 0.4:
            line["resume_epoch"] = max(0, p.epoch + self.random.choice([-1, 0, 0, 1]))
        self._add(**line)

    def _die_and_come_back(self, p: _Producer) -> None:
        """Crash before or after the commit; the new run replays, or goes on."""
        r = self.random
        old, first = p.run, min(p.staged, default=p.epoch)
        self._open(p)
        p.epoch = max(p.committed + 1, first + r.choice([0, 0, 0, 1]))
        if r.random() < 0.5:
            for line in [line for line in p.said[-5:] if line["epoch"] >= p.epoch]:
                self._add(**(_again(line) | {"run": p.run}))
        elif r.random() < 0.5:
            word: dict[str, Any] = r.choice([{}, {"seal": True}, {"units": []}])
            self._add(do="commit", producer=p.name, run=p.run, epoch=p.epoch, **word)
        if r.random() < 0.4:
            zombie: Line = {"do": "report", "producer": p.name, "run": old, "epoch": p.epoch, "units": ["zombie"]}
            self._add(**zombie, entries=self._entries(), promises=[], commit=True)

    def _flush(self) -> None:
        """Let everything in flight arrive, and everybody commit."""
        for p in self.producers:
            arriving = self.flight if p is self.producers[-1] else []
            self._report(p, entries=[[*element, 0, 1] for element in arriving], commit=True, promises=self._promises(p))
        self.flight.clear()

    def _define_line(self, **said: Any) -> Line:
        line: Line = {
            "do": "define",
            "deployment": f"d{self.deployments}",
            "segments": self.graph,
            "fronts": list(self.fronts),
            "ordering": self.ordering,
            "progress": self.progress,
            "front_segments": self.front_segments,
        }
        if self.durations:
            line["durations"] = self.durations
        if self.committed_ends:
            line["committed_ends"] = True
        line |= said
        if not line["front_segments"]:
            del line["front_segments"]
        if self.state:
            line["state_segments"] = [name for name in self.state if name in {each for each, _ in line["segments"]}]
            line["state_segments"] = said.get("state_segments", line["state_segments"])
        return line

    def _some_state(self, graph: list[list[Any]]) -> list[str]:
        """Return the segments that stand for state."""
        return [name for name, _ in graph if self.random.random() < 0.5] if self.random.random() < 0.3 else []

    def _mode(self) -> dict[str, str]:
        return {"mode": "HAND_OVER"} if self.random.random() < 0.3 else {}

    def _front_segments(self, fronts: list[str], graph: list[list[Any]]) -> list[list[Any]]:
        """Return the segments that some of the fronts feed; nearly always so that every segment is reached."""
        r = self.random
        if not self.leads or r.random() < 0.2:
            return []
        names = [name for name, _ in graph]
        fed = {name for _, feeds in graph for name in feeds}
        roots = [name for name in names if name not in fed] or names[:1]
        said: list[list[Any]]
        said = [[front, r.sample(names, r.choice([1, 1, min(2, len(names))]))] for front in fronts if r.random() < 0.8]
        if said and r.random() < 0.95:
            for root in roots:
                if not any(root in segments for _, segments in said):
                    r.choice(said)[1].append(root)
        return said

    def _add_define(self) -> None:
        self._add(**self._define_line())

    def _redeploy(self, another_graph: float = 0.15) -> None:
        """Deploy again, mostly rolling; often with other fronts, sometimes another graph, sometimes by force."""
        r = self.random
        self.deployments += 1
        said: dict[str, Any] = {"force": True} if self._choose({"rolling": 8, "by_force": 2}) == "by_force" else {}
        fronts = list(self.fronts)
        if self._choose({"same_fronts": 6, "other_fronts": 4}) == "other_fronts":
            if r.random() < 0.6 and len(fronts) > (0 if r.random() < 0.1 else 1):
                fronts.remove(r.choice(fronts))
            if r.random() < 0.6:
                fronts.append(f"f{len(self.lines)}")
        if said and r.random() < 0.3:
            fronts = []
        said["fronts"] = fronts
        if r.random() < (0.4 if "force" in said else another_graph):
            said["segments"] = r.choice(GRAPHS)
        graph = said.get("segments", self.graph)
        if fronts != self.fronts or graph is not self.graph or r.random() < 0.2:
            said["front_segments"] = self._front_segments(fronts, graph)
        if r.random() < 0.2:
            said["state_segments"] = self._some_state(graph)
        if r.random() < 0.15:
            said["committed_ends"] = not self.committed_ends
        if r.random() < 0.15:
            said |= {"ordering": r.choice(["NONE", "SCOPE", "GLOBAL"]), "progress": r.random() < 0.7}
        for front in fronts:
            if front not in self.owners or r.random() < 0.1:
                self.owners[front] = r.choice(self.producers).name
        if self.timed and r.random() < 0.3:
            self.durations = self._durations()
        self._add(**self._define_line(**said))
        for p in self.producers:
            if not p.open and r.random() < 0.8:
                self._open(p)

    def _odd_define(self) -> None:
        r = self.random
        odd: list[dict[str, Any]] = [
            {"force": True},
            {"segments": r.choice(GRAPHS)},
            {"fronts": [*self.fronts, "odd"]},
            {"front_segments": [["nobody", [self.graph[0][0]]]]},
            {"front_segments": [[front, segments] for front in self.fronts[:1] for segments in ([], ["nowhere"])][:1]},
            {"front_segments": [[front, [self.graph[-1][0]]] for front in self.fronts]},
            {"deployment": "d1", "force": r.random() < 0.5},
            {"deployment": f"d{self.deployments + 1}", "segments": r.choice(GRAPHS)},
            {"deployment": f"d{self.deployments + 1}", "fronts": []},
            {"fronts": ["f0", "f0"]},
            {"state_segments": ["nowhere"]},
            {"committed_ends": not self.committed_ends},
            {"state_segments": [self.graph[0][0]] * r.choice([1, 2])},
            {"segments": [["a", ["nowhere"]]]},
            {"segments": list(reversed(self.graph)), "fronts": list(reversed(self.fronts))},
        ]
        if self.timed:
            odd += [{"durations": self._durations()}] * 2
            too_long = {r.choice(["retention", "remember"]): 101 * 366 * 86_400 * SECOND}
            odd += [{"durations": self._durations() | too_long}]
        self._add(**self._define_line(**r.choice(odd)))

    def _cancel_drain(self) -> None:
        line = {"do": "cancel_drain", "deployment": self.random.choice(["", "", "d1", "d9"])}
        if self.random.random() < 0.2:
            line["drain_id"] = f"dr{self.drains}"
        self._add(**line)

    def _ask_for_drain(self) -> None:
        self.drains += 1
        deployment = self.random.choice([self.deployments] * 4 + [self.deployments + 1, 9, 1])
        self._add(
            do="drain", deployment=f"d{deployment}", drain_id=f"dr{self.drains}", **self._timeout(), **self._mode()
        )

    def _hand_over(self) -> None:
        """Hand over, mostly to the end, and then mostly deploy another graph that goes on."""
        r = self.random
        self.drains += 1
        drain: Line = {"do": "drain", "deployment": f"d{self.deployments}", "drain_id": f"dr{self.drains}"}
        self._add(**drain, mode="HAND_OVER", **self._timeout())
        stays = [element for element in self.flight if element[3] in self.state]
        for p in self.producers:
            if not p.open:
                self._open(p)
            arriving = [each for each in self.flight if each not in stays] if p is self.producers[-1] else []
            self._report(p, entries=[[*element, 0, 1] for element in arriving], commit=True, units=["last"])
        self.flight = stays
        if r.random() < 0.5 and JOB in self.model.jobs():  # what does not balance by now never will
            for s in self.model.substreams(JOB):
                if any(each.sent != each.received for each in s.segments) and r.random() < 0.9:
                    self._add(do="abandon", scope=s.scope, name=s.name)
        for p in self.producers:
            if p.open and r.random() < 0.95:
                self._close(p)
        if r.random() < 0.3:
            self._add(**r.choice([drain, drain | {"mode": "HAND_OVER"}]))
        if r.random() < 0.3:
            self._something_else()
        if r.random() < 0.3:
            self._report(r.choice(self.producers))
        if self.pauses:
            self._pause()
        if r.random() < 0.9:
            self._redeploy(another_graph=0.7)

    def _pause(self) -> None:
        """Draw commands between a hand-over, done or not, and the next deployment: none counts if it is done."""
        r = self.pausing
        for _ in range(r.choice([0, 0, 1, 2, 4])):
            p, front = r.choice(self.producers), r.choice([*self.fronts, "nobody"])
            whose = {"producer": p.name, "run": p.run}
            promise = r.choice(
                [["frontier", front, None, self.since + self.time + r.choice([-10, 0, 20])], ["finish", front]]
            )
            empty: Line = {"entries": [], "promises": [], "commit": r.random() < 0.5}
            lines: list[Line] = [
                {"do": "open", "producer": p.name, "run": f"{p.name}in{len(self.lines)}", "mode": p.mode},
                {"do": "commit", **whose, "promises": [promise]},
                {"do": "report", **whose, "epoch": p.epoch, "units": [f"in{len(self.lines)}"], **empty},
                {"do": "finish_front", "front": front},
                {"do": "cancel_drain", "deployment": ""},
            ]
            if self.timed:
                lines += [{"do": "tick", "wait": r.choice([5, 30, 100]) * SECOND}] * 2
            self._add(**r.choice(lines))

    def _drain_through(self) -> None:
        """Drain, mostly to the end, and then mostly deploy afresh."""
        r = self.random
        self.drains += 1
        self._add(do="drain", deployment=f"d{self.deployments}", drain_id=f"dr{self.drains}", **self._timeout())
        for p in self.producers:
            if not p.open:
                self._open(p)
            if r.random() < 0.5:
                self._report(p)
            finishes = [["finish", front] for front in self.fronts if self.owners.get(front) == p.name]
            arriving = self.flight if p is self.producers[-1] else []
            entries = [[*element, 0, 1] for element in arriving]
            self._report(p, entries=entries, commit=True, units=["last"], promises=finishes)
        self.flight.clear()
        for front in list(self.fronts):
            if r.random() < 0.6:
                self._add(do="finish_front", front=front)
        for p in self.producers:
            if p.open and r.random() < 0.8:
                self._close(p)
        if r.random() < 0.5 and JOB in self.model.jobs():  # what does not balance by now never will
            for s in self.model.substreams(JOB):
                self._add(do="abandon", scope=s.scope, name=s.name)
        if r.random() < 0.5:
            self._report(r.choice(self.producers))
        if r.random() < 0.7:
            self._redeploy()
            self.time = r.choice([self.time, 0])

    def _abandon(self) -> None:
        scope, name, _ = self._substream()
        self._add(do="abandon", scope=scope, name=name)

    def _forget(self, p: _Producer) -> None:
        self._add(do="forget", producer=p.name)
        p.epoch, p.units = 0, {}

    def _finish_front(self) -> None:
        self._add(do="finish_front", front=self.random.choice([*self.fronts, "nobody"]))

    def _subscribe(self) -> None:
        """Subscribe with narrow and wide filters, from the beginning, from a place of their own, and again."""
        r = self.random
        line: Line = {"do": "subscribe", "name": r.choice(["s0", "s1", "s2"])}
        segments = [name for name, _ in self.graph]
        if r.random() < 0.6:
            line["segments"] = r.sample(segments, r.choice([1, 1, min(2, len(segments))]))
        if r.random() < 0.6:
            line["scopes"] = r.sample(SCOPES, r.choice([1, 1, 2]))
        if r.random() < 0.4:
            line["after_seq"] = max(0, self._last_seq() - r.choice([0, 0, 1, 3, 10, 1000]))
        if self.timed:
            line["max_age"] = r.choice([5, 20, 60, 300, 3000]) * SECOND
            if r.random() < 0.2:
                line["max_events"] = r.choice([1, 3, 10])
        if r.random() < 0.08:
            odd: list[dict[str, Any]] = [
                {"segments": ["nowhere"]},
                {"scopes": ["*"]},
                {"name": ""},
                {"after_seq": self._last_seq() + 1},
                {"max_age": 0},
                {"max_age": 36_526 * 86_400 * SECOND},
                {"log": "other"},
            ]
            line |= r.choice(odd)
        self._add(**line)

    def _acknowledge(self) -> None:
        r = self.random
        seq = max(0, self._last_seq() - r.choice([0, 0, 0, 1, 2, 5, 20, -1]))
        log = {"log": "other"} if r.random() < 0.03 else {}
        self._add(do="ack", name=r.choice(["s0", "s1", "s2"]), seq=seq, **log)

    def _unsubscribe(self) -> None:
        self._add(do="unsubscribe", name=self.random.choice(["s0", "s1", "s2"]))

    def _last_seq(self) -> int:
        return self.model.job_status(JOB).last_seq if JOB in self.model.jobs() else 0

    def _delete(self) -> None:
        force = self.random.random() < 0.7
        self._add(do="delete", **({"force": True} if force else {}))
        if force:
            self._add_define()

    def _recover(self) -> None:
        self._add(do="recovered", **({"lost_tail": "tail", "fences": True} if self.random.random() < 0.15 else {}))


def _again(line: Line) -> Line:
    return {key: value for key, value in line.items() if key != "wait"}


def generate(seed: int) -> list[Line]:
    """Generate the sequence of a seed: forty to two hundred lines.

    >>> generate(7) == generate(7)
    True
    """
    return Generator(seed).sequence(Random(seed).randrange(40, 200))
