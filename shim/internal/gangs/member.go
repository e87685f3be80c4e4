package gangs

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"muster.dev/shim/internal/musterv1"
)

var errElsewhere = errors.New("not on the planned node, though Permit was asked for the gang as it stood")

// Reserve records that member i has reserved the node. It returns true if the caller must call the service's Reserve:
// for the first member of the gang, and for each member that did not get its planned node. Permit is called only after
// the service has answered.
func (g *Gang) Reserve(i int, node string) (claim bool, err error) {
	defer g.lock()()
	if err := g.checkMayContinue(i); err != nil {
		return false, err
	}
	elsewhere := g.answer.Planned(i) != node
	if elsewhere && g.permitRequested {
		return false, errElsewhere
	}
	if claim = elsewhere || !g.reserveCalled; claim {
		g.reserveCalled = true
		g.openReserves++
	}
	g.members[i].state, g.members[i].node = reserved, node
	g.progress++
	return claim, nil
}

// AllowCandidates allows all candidates to the gang, because member i's planned node refused it. It returns true if the
// pod must be activated again. It returns false if the member has no other candidates, has tried them already, or Permit
// has been called.
func (g *Gang) AllowCandidates(i int) bool {
	defer g.lock()()
	m := &g.members[i]
	if g.checkMayContinue(i) != nil || g.permitRequested || m.offeredCandidates || g.answer.CandidateCount(i) == 1 {
		return false
	}
	g.allowCandidates, m.cycleRan, m.rescheduling = true, false, true
	return true
}

// RecordReserveAnswer records that the service has accepted a Reserve call. It returns true if the caller must call
// Permit now.
func (g *Gang) RecordReserveAnswer() (ask bool) {
	defer g.lock()()
	g.openReserves--
	return g.requestPermitIfComplete()
}

// Arrival is the result of Arrive. It determines the answer of Permit for one member.
type Arrival int

const (
	// Wait means that the member waits for the others.
	Wait Arrival = iota
	// Ask means that the last required member has arrived. The caller calls the service, and the member waits.
	Ask
	// Pass means that the gang has been allowed already, so the member does not wait.
	Pass
)

// Arrive records that member i has reached Permit. version is the current resourceVersion of its pod.
func (g *Gang) Arrive(i int, version string) (Arrival, error) {
	defer g.lock()()
	if err := g.checkMayContinue(i); err != nil {
		return Wait, err
	}
	g.progress++
	if g.phase != Open {
		g.allow(i, version)
		return Pass, nil
	}
	g.members[i].state = waiting
	if g.requestPermitIfComplete() {
		return Ask, nil
	}
	return Wait, nil
}

// requestPermitIfComplete returns true once, when all required members wait and all Reserve calls are answered. Then the
// caller calls Permit. It returns false while a member is being scheduled again for another candidate, because after
// Permit members may use only their planned nodes. The caller of requestPermitIfComplete holds the lock.
func (g *Gang) requestPermitIfComplete() bool {
	if g.phase != Open || g.permitRequested || g.openReserves > 0 {
		return false
	}
	waitingCount := 0
	for i := range g.members {
		switch m := &g.members[i]; {
		case m.state == waiting:
			waitingCount++
		case m.state == idle && m.rescheduling:
			return false
		}
	}
	g.permitRequested = waitingCount >= g.required
	return g.permitRequested
}

// Allow stores the annotations of each Binding and returns the waiting members. versions has the current
// resourceVersion of each member. The API server refuses a late Binding of a pod that has changed since. Renew can
// replace the version while the Binding is in flight. No Binding may be sent after sendBy.
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
	close(g.permitted)
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

// allow marks member i as allowed to bind. Its GPUs count as taken until its Binding is answered, even if the service
// restarts. The caller holds the lock.
func (g *Gang) allow(i int, version string) {
	m := &g.members[i]
	m.state, m.version = allowed, version
	g.store.inFlight[g.UIDs[i]] = &InFlight{
		Namespace: g.Namespace, Name: g.Names[i], UID: g.UIDs[i], Node: m.node,
		Annotations: g.annotations(i), Version: version,
	}
}

// DeviceMembers returns the number of members that get devices. Each of them costs writes before its Binding.
func (g *Gang) DeviceMembers() int {
	defer g.lock()()
	if g.answer == nil {
		return 0
	}
	return g.answer.DeviceMembers()
}

// SendBy returns the time after which no Binding may be sent.
func (g *Gang) SendBy() time.Time {
	defer g.lock()()
	return g.sendBy
}

// Binding returns the annotations and the resourceVersion that member i's Binding must carry.
func (g *Gang) Binding(i int) (annotations map[string]string, version string) {
	defer g.lock()()
	return g.annotations(i), g.members[i].version
}

// Renew replaces the resourceVersion in member i's Binding, because its pod has changed since Permit.
func (g *Gang) Renew(i int, version string) {
	defer g.lock()()
	g.members[i].version = version
	if flight := g.store.inFlight[g.UIDs[i]]; flight != nil {
		flight.Version = version
	}
}

// ReachBind records that member i has reached Bind, after WaitOnPermit and PreBind. When the last member of the
// quorum has reached Bind, the gang is committed, and ReachBind returns true. A committed gang is never closed, and a
// closed gang is never committed. It returns ErrStopping in place of a commit after Stop.
func (g *Gang) ReachBind(i int) (committed bool, err error) {
	defer g.lock()()
	if g.phase == Closed {
		return false, ErrClosed
	}
	if g.phase != Permitted && g.phase != Committed || g.members[i].state != allowed {
		return false, fmt.Errorf("member %d came to Bind without Permit", i)
	}
	g.members[i].state = atBind
	if g.phase == Committed {
		g.commit(i)
		return false, nil
	}
	for _, q := range g.quorum {
		if g.members[q].state != atBind {
			return false, nil
		}
	}
	if g.store.stopping {
		return false, ErrStopping
	}
	g.phase = Committed
	for j := range g.members {
		if g.members[j].state == atBind {
			g.commit(j)
		}
	}
	close(g.committed)
	return true, nil
}

// commit marks the Binding of member i, which is at Bind. The pod may be deleted meanwhile. The caller holds the lock.
func (g *Gang) commit(i int) {
	if flight := g.store.inFlight[g.UIDs[i]]; flight != nil {
		flight.committed = true
	}
}

// Bound records that the API server accepted member i's Binding.
func (g *Gang) Bound(i int) {
	defer g.lock()()
	g.members[i].state = bound
	delete(g.store.inFlight, g.UIDs[i])
	g.store.places.remove(g.UIDs[i])
	for j := range g.members {
		if g.members[j].state != bound {
			return
		}
	}
	g.store.drop(g)
}

// Fail records that member i will not get its node. Before the commit this ends the plan for all members, except if the
// member was not waiting when Permit was called: the quorum does not need such a member.
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
	if g.isNeeded(i, before) {
		do = g.closeFailed(fmt.Sprintf("member %s/%s failed: %s", g.Namespace, g.Names[i], message))
	}
	if !g.voidKnown || before >= allowed {
		do.Reports = append(do.Reports, g.unreserveRequest(i, node, fate, plugin, message))
	}
	return do
}

// Abort closes a gang that is not committed, for a reason that concerns no single member.
func (g *Gang) Abort(reason string) Instructions {
	defer g.lock()()
	if g.phase == Committed {
		return Instructions{}
	}
	return g.closeFailed(reason)
}

// CloseAsStale closes a gang without a report, because the service has a newer generation of it.
func (g *Gang) CloseAsStale() Instructions {
	defer g.lock()()
	return g.voidByService("the service has a newer plan")
}

// Stall stops waiting for members that have not arrived. Before Permit it closes the whole plan; afterwards only these
// members fail. They have no scheduling cycle that would report the failure, so Stall returns the reports.
func (g *Gang) Stall(reason string) Instructions {
	defer g.lock()()
	if g.phase == Closed {
		return Instructions{}
	}
	var do Instructions
	late := g.phase == Permitted || g.phase == Committed
	if !late {
		do = g.closeFailed(reason)
	}
	for i := range g.members {
		if g.members[i].state != idle {
			continue
		}
		g.members[i].state = failed
		if !g.voidKnown {
			do.Reports = append(do.Reports, g.unreserveRequest(i, "", musterv1.BindingFate_BINDING_FATE_NEVER_SENT, "", reason))
		}
		if !late {
			break // one report ends the whole plan
		}
	}
	return do
}

// checkMayContinue returns ErrClosed if member i cannot continue. Stall may have failed the member while its cycle was
// running.
func (g *Gang) checkMayContinue(i int) error {
	if g.phase == Closed || g.closedAfterPermit || g.members[i].state == failed {
		return ErrClosed
	}
	return nil
}

// isNeeded returns whether the gang cannot continue without member i. before is the member's state when it failed.
func (g *Gang) isNeeded(i int, before memberState) bool {
	switch {
	case g.phase == Committed:
		return false
	case g.phase == Permitted:
		return slices.Contains(g.quorum, i)
	default:
		return !g.permitRequested || before == waiting
	}
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
