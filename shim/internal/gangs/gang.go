// Package gangs is the state machine of the shim: it stores verdicts and the state of each gang. Events go in,
// instructions come out.
//
// The package makes no calls and does not depend on the scheduler. PreEnqueue runs under the lock of the scheduling
// queue and may therefore call it. One mutex guards all state. It is never held while the caller carries out an
// instruction.
package gangs

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"muster.dev/shim/internal/musterv1"
)

// Phase is the state of a verdict, from its arrival to its end.
type Phase int

const (
	// Pending means that the verdict has arrived, but Filter and Score have not been answered. Members are gated.
	Pending Phase = iota
	// Open means that the answers have arrived. PreEnqueue lets the members through; members of a refused gang only
	// once.
	Open
	// Permitted means that the service allowed the gang and the waiting members were released. No member is bound
	// yet.
	Permitted
	// Committed means that all members of the quorum have reached Bind. From here on, each member binds on its own.
	Committed
	// Closed means that this verdict is void. Members are gated until the next verdict.
	Closed
)

// ErrClosed means that the verdict is void, or that it admits no further members.
var ErrClosed = errors.New("the gang's verdict is no longer valid")

// ErrStopping means that the gang could be committed, but the process ends.
var ErrStopping = errors.New("the scheduler is stopping")

// Gang is one verdict for one gang. A new generation is a new Gang. A scheduling cycle keeps the Gang with which it
// began, so that a late hook of an old cycle cannot change a newer plan.
type Gang struct {
	Plan      *musterv1.PlanRef
	Namespace string
	Names     []string
	UIDs      []types.UID
	// Refused means that the members are let through only to fail with the reason. They are never placed.
	Refused bool

	store             *Store // its mutex guards all fields below
	required          int
	phase             Phase
	voidReason        string // why the verdict is void
	closedAfterPermit bool   // withdrawn, or session lost, after Permit: members that are not allowed yet are gated
	voidKnown         bool   // the service knows that the verdict is void: members that send no Binding need no report
	answer            *Answer
	since             time.Time // sort time in the scheduling queue
	reserveCalled     bool      // Reserve has been called at least once
	openReserves      int       // Reserve calls without an answer
	allowCandidates   bool      // a planned node refused its member, so members may use all their candidates
	permitRequested   bool      // Permit has been called: members may use only their planned nodes
	members           []member
	quorum            []int // members that were waiting when the service allowed the gang
	values            [][]string
	keys              []string
	sendBy            time.Time // no Binding is sent later, because the service may then give the GPUs to other pods
	progress          int

	permitted chan struct{}
	committed chan struct{}
	closed    chan struct{}
}

// memberState is the state of one member under a verdict:
//
//	state     what the member does                     next      after
//	idle      no hook has reserved a node for it       reserved  Reserve
//	reserved  its cycle goes on to Permit              waiting   Arrive, while the gang is open
//	                                                   allowed   Arrive, once the gang is permitted
//	waiting   waits in Permit for the gang             allowed   Allow
//	allowed   passes WaitOnPermit and PreBind          atBind    ReachBind
//	atBind    waits for the commit, or for its answer  bound     Bound
//	bound     has its node                             —
//	failed    is gated until the next verdict          —
//
// Fail moves a member from any state except bound to failed. Stall, and the end of a permitted gang, do so for idle
// members. The end of a verdict changes no other state: the cycles of its members fail, and their Unreserve calls Fail.
type memberState int

const (
	idle memberState = iota
	reserved
	waiting
	allowed
	atBind
	bound
	failed
)

type member struct {
	state             memberState
	cycleRan          bool // PreFilter or PostFilter has run for the pod under this verdict
	offeredCandidates bool // PreFilter has offered all candidates to the pod
	rescheduling      bool // the planned node refused the pod, which is being scheduled again for the other candidates
	node              string
	version           string // resourceVersion in its Binding: the pod's at Permit, or a later one set by Renew
}

// Instructions are the caller's next actions after an event. The caller must not hold the store's lock.
type Instructions struct {
	// Closed lists gangs whose verdict became void. The caller removes their nominations and releases their waiting
	// members.
	Closed []*Gang
	// Reports are sent to the service.
	Reports []*musterv1.UnreserveRequest
}

// Closed returns a channel that is closed when the verdict becomes void.
func (g *Gang) Closed() <-chan struct{} { return g.closed }

// Permitted returns a channel that is closed when the service has allowed the gang.
func (g *Gang) Permitted() <-chan struct{} { return g.permitted }

// Committed returns a channel that is closed when all members of the quorum have reached Bind.
func (g *Gang) Committed() <-chan struct{} { return g.committed }

// Phase returns the current phase.
func (g *Gang) Phase() Phase {
	defer g.lock()()
	return g.phase
}

// VoidReason returns the reason why the verdict is void.
func (g *Gang) VoidReason() string {
	defer g.lock()()
	return g.voidReason
}

// StorePending stores the answers of a pending verdict, so that other pods do not get its devices. Members stay gated.
func (g *Gang) StorePending(answer *Answer) {
	defer g.lock()()
	if g.phase == Pending {
		g.answer = answer
	}
}

// Open stores the answers. From now on, PreEnqueue lets the members through. Their place in the scheduling queue is
// that of a pod created at since, or at the gang's last failure if that is later. Open returns false if the verdict
// is no longer pending.
func (g *Gang) Open(answer *Answer, since time.Time) bool {
	defer g.lock()()
	if g.phase != Pending {
		return false
	}
	g.answer, g.phase, g.since = answer, Open, g.store.places.queueTime(g, since)
	return true
}

// MembersWithoutCycle returns the members for which no cycle has run yet. The caller activates them again.
func (g *Gang) MembersWithoutCycle() []int {
	defer g.lock()()
	var unseen []int
	for i := range g.members {
		if !g.members[i].cycleRan && g.members[i].state == idle {
			unseen = append(unseen, i)
		}
	}
	return unseen
}

// CycleRan returns whether a cycle has run for member i.
func (g *Gang) CycleRan(i int) bool {
	defer g.lock()()
	return g.members[i].cycleRan || g.members[i].state != idle
}

// WaitingMembers returns the members that wait in Permit. A member may have been released before the framework had it
// in the waiting map, and then still waits. So a released member counts as waiting until it reaches Bind.
func (g *Gang) WaitingMembers() []types.UID {
	defer g.lock()()
	var uids []types.UID
	for i := range g.members {
		if state := g.members[i].state; state == waiting || state == allowed {
			uids = append(uids, g.UIDs[i])
		}
	}
	return uids
}

// HoldsNodes returns whether the verdict is valid, or a member that is not bound has reserved a node.
func (g *Gang) HoldsNodes() bool {
	defer g.lock()()
	if g.phase != Closed {
		return true
	}
	for i := range g.members {
		if state := g.members[i].state; state > idle && state < bound {
			return true
		}
	}
	return false
}

// Progress returns a counter that grows with each step of a member. While the counter does not grow, the gang stalls.
func (g *Gang) Progress() int {
	defer g.lock()()
	return g.progress
}

// IsSettled returns whether no member of the gang needs the deadline any more: all are allowed, bound or failed, or the
// verdict is void. It is for gangs that are not refused.
func (g *Gang) IsSettled() bool {
	defer g.lock()()
	if g.phase == Closed {
		return true
	}
	for i := range g.members {
		if g.members[i].state < allowed && !g.closedAfterPermit {
			return false
		}
	}
	return true
}

func (g *Gang) lock() (unlock func()) {
	g.store.mu.Lock()
	return g.store.mu.Unlock
}

// closeFailed makes the verdict void because a member failed, and records the failure for the queue order. It returns no
// instructions if the verdict was void before. The caller holds the lock.
func (g *Gang) closeFailed(reason string) Instructions {
	if g.phase != Closed {
		g.store.places.recordFailure(g, time.Now())
	}
	return g.end(reason)
}

// end makes the verdict void for any reason. The caller holds the lock. After Permit the service waits for a report of
// each member. So end reports members without a cycle, because no Unreserve runs for them. Before Permit the report of
// one member ends the whole plan, so no other report is needed.
func (g *Gang) end(reason string) Instructions {
	if g.phase == Closed {
		return Instructions{}
	}
	do := Instructions{Closed: []*Gang{g}}
	for i := range g.members {
		if g.phase == Permitted && g.members[i].state == idle {
			g.members[i].state = failed
			do.Reports = append(do.Reports, g.unreserveRequest(i, "", musterv1.BindingFate_BINDING_FATE_NEVER_SENT, "", reason))
		}
	}
	g.phase, g.voidReason = Closed, reason
	close(g.closed)
	return do
}

// voidByService ends a verdict that the service has withdrawn or replaced, or whose session is lost. Members that were
// allowed continue to bind. The caller holds the lock.
func (g *Gang) voidByService(reason string) Instructions {
	g.voidKnown = true
	if g.phase == Permitted || g.phase == Committed {
		g.closedAfterPermit = true
		return Instructions{}
	}
	return g.end(reason)
}

// unreserveRequest returns the Unreserve request for member i.
func (g *Gang) unreserveRequest(i int, node string, fate musterv1.BindingFate, plugin, message string) *musterv1.UnreserveRequest {
	return &musterv1.UnreserveRequest{
		Plan: g.Plan, Member: uint32(i), Node: node, Fate: fate, Plugin: plugin, Message: message,
		Uid: string(g.UIDs[i]),
	}
}

// append adds the instructions of another call, so that the caller carries out both.
func (i *Instructions) append(next Instructions) {
	i.Closed = append(i.Closed, next.Closed...)
	i.Reports = append(i.Reports, next.Reports...)
}

func newGang(store *Store, epoch uint64, verdict *musterv1.Verdict) *Gang {
	g := &Gang{
		Plan:      &musterv1.PlanRef{Epoch: epoch, Gang: verdict.Gang, Generation: verdict.Generation},
		Namespace: verdict.Namespace,
		Names:     verdict.Names,
		UIDs:      make([]types.UID, len(verdict.Uids)),
		Refused:   verdict.Outcome == musterv1.Outcome_OUTCOME_REFUSED,
		store:     store,
		required:  int(verdict.Required),
		members:   make([]member, len(verdict.Uids)),
		permitted: make(chan struct{}),
		committed: make(chan struct{}),
		closed:    make(chan struct{}),
	}
	for i, uid := range verdict.Uids {
		g.UIDs[i] = types.UID(uid)
	}
	return g
}
