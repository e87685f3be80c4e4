// Package gangs is the shim's memory of verdicts and of what became of them: the state of each
// gang, events in, instructions out. It makes no call and knows no scheduler, so that PreEnqueue,
// which runs under the scheduling queue's lock, may ask it; one mutex guards all, and is never held
// while an instruction is carried out.
package gangs

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"muster.dev/shim/internal/musterv1"
)

// Phase is how far the verdict has come.
type Phase int

const (
	// Pending: the verdict is known, Filter and Score are not answered yet. Members are gated.
	Pending Phase = iota
	// Open: the answers are there. Members go through PreEnqueue; a refused gang's only once.
	Open
	// Permitted: the service allowed it and the waiters were let go. Nothing is bound yet.
	Permitted
	// Committed: all members of the quorum stand at Bind. From here on each binds by itself.
	Committed
	// Closed: this verdict is void. Members are gated until the next one.
	Closed
)

// ErrClosed says that the gang's verdict is void, or closed to members not yet allowed.
var ErrClosed = errors.New("the gang's verdict is no longer valid")

// Gang is one verdict for one gang: a new generation is a new Gang. Scheduling cycles hold on to
// the Gang that they began with, so that a late hook of an old cycle touches no newer plan.
type Gang struct {
	Plan      *musterv1.PlanRef
	Namespace string
	Names     []string
	UIDs      []types.UID
	// Refused: members are let through to fail with the reason, never to be placed.
	Refused bool

	store    *Store // its mutex guards everything below
	required int
	phase    Phase
	why      string // why it is closed
	barred   bool   // withdrawn or lost after Permit: closed to members not yet allowed
	known    bool   // the service voided it: it need not hear of members that send no Binding
	answer   *Answer
	since    time.Time // where it stands in the scheduling queue
	claimed  bool      // the service has been asked
	claims   int       // that the service has not answered
	wide     bool      // a planned node has refused its member: all candidates are open
	asked    bool      // for Permit: no member may land elsewhere any more
	members  []member
	quorum   []int // members that were waiting when Permit allowed
	values   [][]string
	keys     []string
	sendBy   time.Time // no Binding is sent later: the service may give the GPUs to others then
	progress int

	committed chan struct{}
	closed    chan struct{}
}

type memberState int

const (
	idle     memberState = iota
	reserved             // past our Reserve
	waiting              // held in Permit
	allowed              // Permit let it go
	atBind               // past WaitOnPermit and PreBind, at the commit barrier
	bound
	failed // gated until another verdict names it
)

type member struct {
	state memberState
	seen  bool // PreFilter or PostFilter has met the pod under this verdict
	wide  bool // it has been offered all its candidates
	again bool // its planned node has refused it: it is on its way to the others
	node  string
	rv    string // the resourceVersion that its Binding demands: the pod's at Permit, or what Renew says
}

// Instructions are what the caller must do, without any lock of ours, after an event.
type Instructions struct {
	// Closed gangs: drop their nominations and release those of their members that wait.
	Closed []*Gang
	// Reports for the service.
	Reports []*musterv1.UnreserveRequest
}

// Closed is closed when the verdict is void.
func (g *Gang) Closed() <-chan struct{} { return g.closed }

// Committed is closed when all members of the quorum stand at Bind.
func (g *Gang) Committed() <-chan struct{} { return g.committed }

// Phase is the present one.
func (g *Gang) Phase() Phase {
	defer g.lock()()
	return g.phase
}

// Why says why the gang is closed.
func (g *Gang) Why() string {
	defer g.lock()()
	return g.why
}

// Open stores the answers: from now on PreEnqueue lets the members through, and they stand in the
// scheduling queue where a pod of that time does, or of the time when the gang failed last. False if the verdict was voided meanwhile.
func (g *Gang) Open(answer *Answer, since time.Time) bool {
	defer g.lock()()
	if g.phase != Pending {
		return false
	}
	g.answer, g.phase, g.since = answer, Open, g.store.turns.since(g, since)
	return true
}

// Unseen lists the members that no cycle has met yet: those to activate again.
func (g *Gang) Unseen() []int {
	defer g.lock()()
	var unseen []int
	for i := range g.members {
		if !g.members[i].seen && g.members[i].state == idle {
			unseen = append(unseen, i)
		}
	}
	return unseen
}

// Waiting lists the members held in Permit. One that was let go may not have been in the waiting map yet: it
// counts until it stands at Bind.
func (g *Gang) Waiting() []types.UID {
	defer g.lock()()
	var uids []types.UID
	for i := range g.members {
		if state := g.members[i].state; state == waiting || state == allowed {
			uids = append(uids, g.UIDs[i])
		}
	}
	return uids
}

// Progress counts what moved: a gang whose count stands still has stalled.
func (g *Gang) Progress() int {
	defer g.lock()()
	return g.progress
}

// Settled is true when nothing more will come that a deadline must watch.
func (g *Gang) Settled() bool {
	defer g.lock()()
	if g.phase == Closed {
		return true
	}
	for i := range g.members {
		switch {
		case g.Refused && !g.members[i].seen:
			return false
		case !g.Refused && g.members[i].state < allowed && !g.barred:
			return false
		}
	}
	return true
}

func (g *Gang) lock() (unlock func()) {
	g.store.mu.Lock()
	return g.store.mu.Unlock
}

// close voids the verdict because a member failed; the lock is held. What it returns is empty if it was void
// before.
func (g *Gang) close(why string) Instructions {
	if g.phase != Closed {
		g.store.turns.fail(g, time.Now())
	}
	return g.end(why)
}

// end voids the verdict, whatever the reason; the lock is held. Past Permit the service waits for each member.
// Those that have no cycle, and so no Unreserve, are reported here. Before Permit the report of one member ends
// the plan for all.
func (g *Gang) end(why string) Instructions {
	if g.phase == Closed {
		return Instructions{}
	}
	do := Instructions{Closed: []*Gang{g}}
	for i := range g.members {
		if g.phase == Permitted && g.members[i].state == idle {
			g.members[i].state = failed
			do.Reports = append(do.Reports, g.report(i, "", musterv1.BindingFate_BINDING_FATE_NEVER_SENT, "", why))
		}
	}
	g.phase, g.why = Closed, why
	close(g.closed)
	return do
}

// void ends what the service no longer stands by; the lock is held. Members past Permit go on.
func (g *Gang) void(why string) Instructions {
	g.known = true
	if g.phase == Permitted || g.phase == Committed {
		g.barred = true
		return Instructions{}
	}
	return g.end(why)
}

// report tells the service what became of member i.
func (g *Gang) report(i int, node string, fate musterv1.BindingFate, plugin, message string) *musterv1.UnreserveRequest {
	return &musterv1.UnreserveRequest{
		Plan: g.Plan, Member: uint32(i), Node: node, Fate: fate, Plugin: plugin, Message: message,
		Uid: string(g.UIDs[i]),
	}
}

func (i *Instructions) add(more Instructions) {
	i.Closed = append(i.Closed, more.Closed...)
	i.Reports = append(i.Reports, more.Reports...)
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
		committed: make(chan struct{}),
		closed:    make(chan struct{}),
	}
	for i, uid := range verdict.Uids {
		g.UIDs[i] = types.UID(uid)
	}
	return g
}
