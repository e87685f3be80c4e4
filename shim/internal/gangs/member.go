package gangs

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"muster.dev/shim/internal/musterv1"
)

var errElsewhere = errors.New("not on the planned node, though Permit was asked for the gang as it stood")

// Reserve records that member i holds the node. True: the service must claim it, for the first member of the
// gang and for each that lands on another node than the planned one. Permit is not asked before it has.
func (g *Gang) Reserve(i int, node string) (claim bool, err error) {
	defer g.lock()()
	if err := g.admits(i); err != nil {
		return false, err
	}
	elsewhere := g.answer.Planned(i) != node
	if elsewhere && g.asked {
		return false, errElsewhere
	}
	if claim = elsewhere || !g.claimed; claim {
		g.claimed = true
		g.claims++
	}
	g.members[i].state, g.members[i].node = reserved, node
	g.progress++
	return claim, nil
}

// Widen opens all candidates to the gang, since member i's planned node has refused it: i is to be activated
// once more. False: there are none for it, or it has had them, or it is too late.
func (g *Gang) Widen(i int) bool {
	defer g.lock()()
	m := &g.members[i]
	if g.admits(i) != nil || g.asked || m.wide || g.answer.Candidates(i) == 1 {
		return false
	}
	g.wide, m.seen, m.again = true, false, true
	return true
}

// Claimed records that the service has claimed what Reserve asked for. True: Permit is to be asked now.
func (g *Gang) Claimed() (ask bool) {
	defer g.lock()()
	g.claims--
	return g.complete()
}

// Arrival is Permit's answer to one member.
type Arrival int

const (
	// Wait for the others.
	Wait Arrival = iota
	// Ask the service, and wait: the last required member is here.
	Ask
	// Pass: the gang was allowed before.
	Pass
)

// Arrive records that member i stands at Permit; version is its pod's resourceVersion now.
func (g *Gang) Arrive(i int, version string) (Arrival, error) {
	defer g.lock()()
	if err := g.admits(i); err != nil {
		return Wait, err
	}
	g.progress++
	if g.phase != Open {
		g.allow(i, version)
		return Pass, nil
	}
	g.members[i].state = waiting
	if g.complete() {
		return Ask, nil
	}
	return Wait, nil
}

// complete is true once, when all that are required wait and their nodes are claimed, and none is on its way to
// another node, which it could not have any more. The lock is held.
func (g *Gang) complete() bool {
	if g.phase != Open || g.asked || g.claims > 0 {
		return false
	}
	here := 0
	for at := range g.members {
		switch m := &g.members[at]; {
		case m.state == waiting:
			here++
		case m.state == idle && m.again:
			return false
		}
	}
	g.asked = here >= g.required
	return g.asked
}

// Allow stores what each Binding must carry and returns who waits. The versions, one a member, are
// those of now: a Binding that comes late, after its pod has changed, is refused. One whose answer is
// awaited can be renewed. No Binding is to be sent after sendBy.
func (g *Gang) Allow(answer *musterv1.PermitResponse, versions []string, sendBy time.Time) ([]types.UID, error) {
	defer g.lock()()
	if g.phase != Open {
		return nil, ErrClosed
	}
	keys := answer.AnnotationKeys
	if len(answer.AnnotationValues) != len(keys)*len(g.members) {
		return nil, fmt.Errorf("%d annotation values for %d keys of %d members",
			len(answer.AnnotationValues), len(keys), len(g.members))
	}
	g.keys, g.values = keys, make([][]string, len(g.members))
	for i := range g.members {
		g.values[i] = answer.AnnotationValues[i*len(keys) : (i+1)*len(keys)]
	}
	g.phase, g.sendBy = Permitted, sendBy
	var release []types.UID
	for i := range g.members {
		if g.members[i].state == waiting {
			g.allow(i, versions[i])
			g.quorum = append(g.quorum, i)
			release = append(release, g.UIDs[i])
		}
	}
	return release, nil
}

// allow notes member i as one that may bind: from here until its Binding is answered its GPUs are
// taken, whatever becomes of the service. The lock is held.
func (g *Gang) allow(i int, version string) {
	m := &g.members[i]
	m.state, m.rv = allowed, version
	g.store.inFlight[g.UIDs[i]] = &InFlight{
		Namespace: g.Namespace, Name: g.Names[i], UID: g.UIDs[i], Node: m.node,
		Annotations: g.annotations(i), Version: version,
	}
}

// SendBy is when the last Binding may be sent.
func (g *Gang) SendBy() time.Time {
	defer g.lock()()
	return g.sendBy
}

// Binding is what member i's Binding must carry beside its node: annotations and precondition.
func (g *Gang) Binding(i int) (annotations map[string]string, version string) {
	defer g.lock()()
	return g.annotations(i), g.members[i].rv
}

// Renew notes the version that member i's Binding demands now, its pod having changed since Permit.
func (g *Gang) Renew(i int, version string) {
	defer g.lock()()
	g.members[i].rv = version
	if flight := g.store.inFlight[g.UIDs[i]]; flight != nil {
		flight.Version = version
	}
}

// Stand records that member i has come to Bind, past WaitOnPermit and PreBind. When the last of the
// quorum has, the gang is committed, true for that one: this and Closed exclude each other.
func (g *Gang) Stand(i int) (committed bool, err error) {
	defer g.lock()()
	if g.phase == Closed {
		return false, ErrClosed
	}
	if g.phase != Permitted && g.phase != Committed || g.members[i].state != allowed {
		return false, fmt.Errorf("member %d came to Bind without Permit", i)
	}
	g.members[i].state = atBind
	if g.phase == Committed {
		return false, nil
	}
	for _, q := range g.quorum {
		if g.members[q].state != atBind {
			return false, nil
		}
	}
	g.phase = Committed
	close(g.committed)
	return true, nil
}

// Bound records the API server's yes.
func (g *Gang) Bound(i int) {
	defer g.lock()()
	g.members[i].state = bound
	delete(g.store.inFlight, g.UIDs[i])
	g.store.turns.leave(g.UIDs[i])
	for at := range g.members {
		if g.members[at].state != bound {
			return
		}
	}
	g.store.drop(g)
}

// Fail records that member i will not go where it was planned. Before the commit that is the end of
// the plan for all, unless the member was not there when Permit was asked: the quorum stands without it.
func (g *Gang) Fail(i int, node string, fate musterv1.BindingFate, plugin, message string) Instructions {
	defer g.lock()()
	if g.members[i].state == failed || g.members[i].state == bound {
		return Instructions{}
	}
	before := g.members[i].state
	g.members[i].state = failed
	if flight := g.store.inFlight[g.UIDs[i]]; flight != nil && before >= allowed {
		if fate == musterv1.BindingFate_BINDING_FATE_UNKNOWN {
			flight.Unknown = true
		} else {
			delete(g.store.inFlight, g.UIDs[i])
		}
	}
	var do Instructions
	if g.misses(i, before) {
		do = g.close(fmt.Sprintf("member %s/%s failed: %s", g.Namespace, g.Names[i], message))
	}
	if !g.known || before >= allowed {
		do.Reports = append(do.Reports, g.report(i, node, fate, plugin, message))
	}
	return do
}

// Abort ends what is not committed, for a reason that no single member has.
func (g *Gang) Abort(why string) Instructions {
	defer g.lock()()
	if g.phase == Committed {
		return Instructions{}
	}
	return g.close(why)
}

// Stale ends a gang that the service has given another generation: it need not hear of it.
func (g *Gang) Stale() Instructions {
	defer g.lock()()
	return g.void("the service has a newer plan")
}

// Stall ends the wait for members that did not come. Before Permit the whole plan falls; after it
// only those members do. They have no cycle that would report them: it is done here.
func (g *Gang) Stall(why string) Instructions {
	defer g.lock()()
	if g.phase == Closed {
		return Instructions{}
	}
	var do Instructions
	late := g.phase == Permitted || g.phase == Committed
	if !late {
		do = g.close(why)
	}
	for i := range g.members {
		if g.members[i].state != idle {
			continue
		}
		g.members[i].state = failed
		if !g.known {
			do.Reports = append(do.Reports, g.report(i, "", musterv1.BindingFate_BINDING_FATE_NEVER_SENT, "", why))
		}
		if !late {
			break // one report tells it
		}
	}
	return do
}

// admits: a member that was given back while its cycle ran (Stall) has no place any more.
func (g *Gang) admits(i int) error {
	if g.phase == Closed || g.barred || g.members[i].state == failed {
		return ErrClosed
	}
	return nil
}

// misses says whether the gang can't go on without member i, which was in this state when it failed.
func (g *Gang) misses(i int, before memberState) bool {
	switch {
	case g.phase == Committed:
		return false
	case g.phase == Permitted:
		return g.inQuorum(i)
	default:
		return !g.asked || before == waiting
	}
}

func (g *Gang) inQuorum(i int) bool {
	for _, q := range g.quorum {
		if q == i {
			return true
		}
	}
	return false
}

func (g *Gang) annotations(i int) map[string]string {
	annotations := make(map[string]string, len(g.keys))
	for k, key := range g.keys {
		if value := g.values[i][k]; value != "" {
			annotations[key] = value
		}
	}
	return annotations
}
