"""The tracking state machine: pure, deterministic, without I/O, clock or threads.

How it works, whole before parts. A `Tracker` (`tracker`) holds jobs, takes commands for them, and answers or refuses;
what can be asked of a job is in `views`. Commands, answers and events are the values of `tracker.contract`. A `Job`
(`job`) is a job's state and what happens when something takes effect; which command makes what take effect is in
`reports` (runs, reports, commits, promises) and `deployments` (specs and drains), and what time alone does in `timers`.
Its events go into its log.

For each substream (`accounts`) and segment a job keeps an accumulator (`cells`): labels of sent and received elements
folded by XOR, and two counts; where it lies depends on how many segments there are (`sparsecells` for many). A report's
entries go there by loops of numpy, or by compiled ones (`compiled`). Read `lifecycle` first: it has the states of a
substream, and all that moves it from one to the next. Nothing takes effect before its epoch is committed (`producers`
has what is staged), so a retried task or a zombie can never end anything; in IMMEDIATE mode it does, and is taken out
again, which is all in `provisional`.

Fronts promise what they will not send any more (`fronts`), or how much they send (`expectations`); a substream that
waits for none of them is closed (`closed`), and `timeindex` finds what a time closes. Substreams of which they promise
nothing in time are given up (`timers`). A closed substream whose accumulators balance on a segment and on
everything upstream (`graph`) has ended there (`ends`), once, in the contract's order. A substream that has ended stays
ended (`tombstones`); a deployment is brought to its end by its drain.

`names` finds a name's row, `validation` checks what comes in (and `Tracker.prepare` all of a command, before it is kept
anywhere), `log` keeps what goes out, as far as filters ask for it, and beyond retention for `subscriptions`, and
records what it has dropped. `surveys` counts and searches, many at a time, what a job's open substreams wait for;
`codec` has what a snapshot keeps. Every change by a command that may end something is added to the job's `Changes`,
which the evaluation after it looks at.

Rules of this package: it imports nothing that does I/O or knows the time, and nothing of the rest of the tracker but
its contract; whatever it needs to know comes in a command. A refusal changes nothing but settling. No command and no
question passes over the open substreams but to list them, to count them in steps or to end them, to look for stalls and
for what is to be given up when that may be due, or to take them over into another graph: what is asked in between is
kept as a count or an index.
"""

from tracker.contract.commands import *  # noqa: F403 - commands and answers are part of the core's public face
from tracker.contract.events import *  # noqa: F403
from tracker.contract.refusal import Refused
from tracker.contract.spec import *  # noqa: F403
from tracker.contract.status import JobStatus, SubstreamStatus
from tracker.contract.values import *  # noqa: F403

from .tracker import Prepared, Tracker
from .views import JobView

__all__ = ["JobStatus", "JobView", "Prepared", "Refused", "SubstreamStatus", "Tracker"]
