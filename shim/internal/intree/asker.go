package intree

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	corelisters "k8s.io/client-go/listers/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"muster.dev/shim/internal/metrics"
	"muster.dev/shim/internal/musterv1"
)

const (
	// renewAfter is the least time between two renewals.
	renewAfter = time.Second
	// restShare bounds what renewals cost: after one that took T comes a pause of at least restShare × T.
	restShare = 4
	// retryAfter: the informers may know a pod or its claims a moment later than the service does.
	retryAfter = 50 * time.Millisecond
	// retries so often; then what is known is reported.
	retries = 6
	never   = 24 * time.Hour
	// scoresAfter is the least time between two answers for the sake of scores. What changes scores alone is no
	// cause of a renewal: they never make pods fit.
	scoresAfter = 30 * time.Second
)

// Report sends one report to the service.
type Report func(context.Context, *musterv1.ReportInTreeRequest) error

// Asker keeps the service's questions, answers them, and answers again when a cause may have changed. All of it
// runs on one goroutine, but for the nodes of one inspection (coresShare).
type Asker struct {
	handle fwk.Handle
	report Report
	wake   chan struct{}

	mu        sync.Mutex
	epoch     uint64
	questions map[string]*question
	changed   bool      // a cause may have changed since the last renewal began
	renewAt   time.Time // not before

	// Of Run's goroutine alone.
	pods      corelisters.PodLister
	inspector *inspector
	scorer    *scorer // nil if the profile has no plugin that scores by preferences
	sorter    *sorter
}

// question is one of the service's. What stands below `epoch` belongs to Run's goroutine, but for `claims` and
// `due`, which the lock guards.
type question struct {
	asked  *musterv1.InTreeQuestion
	epoch  uint64
	claims sets.Set[string] // namespace/name of the claims that its pods name
	due    time.Time        // when it is answered for the first time, or tried again; then far away
	tries  int
	last   []byte // the last report
}

// New makes an asker that is idle until Run.
func New(handle fwk.Handle, report Report) *Asker {
	return &Asker{handle: handle, report: report, wake: make(chan struct{}, 1), questions: map[string]*question{}}
}

// Begin forgets the questions of an earlier session. Epoch 0: there is none.
func (a *Asker) Begin(epoch uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.epoch = epoch
	clear(a.questions)
}

// Ask takes a question in; it never waits.
func (a *Asker) Ask(asked *musterv1.InTreeQuestion) {
	a.mu.Lock()
	if a.epoch != 0 && len(asked.Names) == len(asked.Uids) {
		a.questions[asked.Gang] = &question{asked: asked, epoch: a.epoch}
	}
	a.mu.Unlock()
	a.nudge()
}

// Open counts the questions.
func (a *Asker) Open() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.questions)
}

func (a *Asker) nudge() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

var errNoProfile = errors.New("the handle is no framework: its plugins can't be listed")

// Prepare makes the second framework instance. It must run after the scheduler has been built, when the
// profile's plugins are known, and after the informers have synced.
func (a *Asker) Prepare(ctx context.Context) error {
	profile, ok := a.handle.(framework.Framework)
	if !ok {
		return errNoProfile
	}
	plugins := profile.ListPlugins()
	return a.prepare(ctx, asked(plugins), scored(plugins))
}

func (a *Asker) prepare(ctx context.Context, plugins, scoring []config.Plugin) error {
	factory := a.handle.SharedInformerFactory()
	core := factory.Core().V1()
	a.pods = core.Pods().Lister()
	holding := &snapshot{takes: counts}
	made, err := newFramework(ctx, a.handle, holding, asking(plugins))
	if err != nil {
		return err
	}
	a.inspector = &inspector{framework: made, extenders: a.handle.Extenders(), snapshot: holding}
	if err := a.prepareScores(ctx, scoring); err != nil {
		return err
	}
	a.sorter = &sorter{claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister()}
	if utilfeature.DefaultFeatureGate.Enabled(features.DynamicResourceAllocation) {
		a.sorter.devices = factory.Resource().V1().ResourceClaims().Lister()
	}
	return a.watch(factory, plugins)
}

func (a *Asker) prepareScores(ctx context.Context, scoring []config.Plugin) error {
	if len(scoring) == 0 {
		return nil
	}
	all := &snapshot{takes: bound}
	made, err := newFramework(ctx, a.handle, all, scoringBy(scoring))
	if err != nil {
		return err
	}
	nodes := a.handle.SharedInformerFactory().Core().V1().Nodes().Lister()
	a.scorer = &scorer{
		framework: made, snapshot: all, weights: map[string]int64{}, kept: map[string]map[string]uint32{},
		renew: func() error { return all.renew(nodes, a.pods) },
	}
	for _, plugin := range scoring {
		a.scorer.weights[plugin.Name] = int64(plugin.Weight)
	}
	return nil
}

// Run answers until the context ends; Prepare has been called.
func (a *Asker) Run(ctx context.Context) {
	timer := time.NewTimer(never)
	defer timer.Stop()
	for ctx.Err() == nil {
		due, renews, next := a.due(time.Now())
		if len(due) > 0 {
			began := time.Now()
			a.answerAll(ctx, due)
			took := time.Since(began)
			metrics.InTree(took)
			if renews {
				a.rest(max(renewAfter, restShare*took))
			}
			continue
		}
		timer.Reset(next)
		select {
		case <-ctx.Done():
		case <-a.wake:
		case <-timer.C:
		}
	}
}

// due lists what is to be answered now: questions whose time has come, and all if a cause has changed and a
// renewal may begin. Without any, `next` says how long to wait.
func (a *Asker) due(now time.Time) (due []*question, renews bool, next time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	next = never
	if len(a.questions) == 0 {
		a.changed = false
	}
	if a.changed {
		next = a.renewAt.Sub(now)
		renews = next <= 0
	}
	for _, q := range a.questions {
		if wait := q.due.Sub(now); wait <= 0 || renews {
			q.due = now.Add(never)
			due = append(due, q)
		} else {
			next = min(next, wait)
		}
	}
	if renews {
		a.changed = false
	}
	return due, renews, next
}

// unanswered lists the questions whose time has come since `due` was asked.
func (a *Asker) unanswered(now time.Time) (found []*question) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, q := range a.questions {
		if !q.due.After(now) {
			q.due = now.Add(never)
			found = append(found, q)
		}
	}
	return found
}

func (a *Asker) rest(pause time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.renewAt = time.Now().Add(pause)
}

// touched notes that a cause of answers may have changed.
func (a *Asker) touched() {
	a.mu.Lock()
	open := len(a.questions) > 0
	a.changed = a.changed || open
	a.mu.Unlock()
	if open {
		a.nudge()
	}
}

// claimTouched is touched, for a claim that some question names.
func (a *Asker) claimTouched(key string) {
	a.mu.Lock()
	named := false
	for _, q := range a.questions {
		named = named || q.claims.Has(key)
	}
	a.mu.Unlock()
	if named {
		a.touched()
	}
}
