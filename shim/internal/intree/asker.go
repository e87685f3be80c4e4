package intree

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"muster.dev/shim/internal/musterv1"
)

const (
	// renewAfter is the least time between two renewals of one question.
	renewAfter = time.Second
	// onceMoreAfter is how long after a renewal the question is answered once more. No round lasts that long.
	onceMoreAfter = 2 * renewAfter
	// sliceFor is how long one question is worked on before another one may be.
	sliceFor = 25 * time.Millisecond
	// restShare bounds the cost of renewals: a slice of time T is followed by a pause of restShare × T. After a long
	// rest, pauses of up to credit in total may be postponed. So rare changes are answered at once.
	restShare = 4
	credit    = 4 * time.Second
	// worksAtMost bounds how many questions are worked on at a time, and worksOfOne how many of one namespace. First
	// answers and renewals count separately.
	worksAtMost, worksOfOne = 64, 16
	// retryAfter is the pause before the next try if a pod or a claim is missing. The informers may receive them a
	// moment later than the service does.
	retryAfter = 50 * time.Millisecond
	// retries bounds these tries. After them, the report contains what is known.
	retries = 6
	never   = 24 * time.Hour
	// scoresAfter is the least time between two answers that only renew scores. Changes that affect only scores cause
	// no renewal, because they never make pods fit.
	scoresAfter = 30 * time.Second
	// reportAfter is the pause before a failed report is sent again. It doubles up to reportAtMost.
	reportAfter, reportAtMost = time.Second, time.Minute
)

// Report sends one report to the service.
type Report func(context.Context, *musterv1.ReportInTreeRequest) error

// Asker stores the service's questions, answers them, and answers again when a cause may have changed. All of it runs
// on one goroutine, except the nodes of one batch (see coresShare).
type Asker struct {
	handle   fwk.Handle
	registry frameworkruntime.Registry
	report   Report
	wake     chan struct{}

	mu        sync.Mutex
	epoch     uint64
	questions map[string]*question
	causes    uint64             // counts events that may change the answers of all questions
	kept      map[string]answers // answers of this round, by namespace

	// Run waits for these. Objects that a handler receives in the first listing are not causes.
	synced []cache.InformerSynced

	// The following fields are used only on Run's goroutine.
	pods      corelisters.PodLister
	inspector *inspector
	scorer    *scorer // nil if the profile has no plugin that scores by preferences
	sorter    *sorter
	round     round
	works     map[*question]*work
	turns     turns
	restUntil time.Time // end of the renewals' pause; far in the past after a long rest
	sliceFor  time.Duration
	shared    *shared // nil if the profile has no VolumeBinding; safe for any goroutine
}

// question is a question of the service. The lock guards the fields below epoch.
type question struct {
	asked    *musterv1.InTreeQuestion
	epoch    uint64
	claims   sets.Set[string] // names of the claims that its pods name
	due      time.Time        // when it is answered first, or again without a new cause
	notUntil time.Time        // no renewal before this time
	answered bool
	named    bool   // an object that its pods name has changed since its last inspection began
	causes   uint64 // Asker.causes when its last inspection began

	// The following fields are used only on Run's goroutine.
	tries, failures int
	last            []byte // digest of the last report
}

// New returns an asker that answers nothing until Run is called. gpus are the resources that count GPUs.
func New(handle fwk.Handle, report Report, gpus []string) *Asker {
	return &Asker{
		handle: handle, registry: registryOf(gpus), report: report, wake: make(chan struct{}, 1), questions: map[string]*question{},
		works: map[*question]*work{}, turns: newTurns(), sliceFor: sliceFor,
	}
}

// Begin forgets the questions of an earlier session. Epoch 0 means that no session is open.
func (a *Asker) Begin(epoch uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.epoch = epoch
	clear(a.questions)
}

// Ask stores a question. It does not block. A question without pods takes back the gang's last one.
func (a *Asker) Ask(asked *musterv1.InTreeQuestion) {
	a.mu.Lock()
	if len(asked.Names) == 0 {
		delete(a.questions, asked.Gang)
	} else if a.epoch != 0 && len(asked.Names) == len(asked.Uids) {
		a.questions[asked.Gang] = &question{asked: asked, epoch: a.epoch, causes: a.causes}
	}
	a.mu.Unlock()
	a.nudge()
}

// Open returns the number of questions.
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

// Prepare creates the second framework instance. Call it after the scheduler has been built, because the profile's
// plugins are known only then, and after the informers have synced.
func (a *Asker) Prepare(ctx context.Context) error {
	profile, ok := a.handle.(framework.Framework)
	if !ok {
		return errNoProfile
	}
	plugins := profile.ListPlugins()
	return a.prepare(ctx, a.asked(plugins), scored(plugins))
}

func (a *Asker) prepare(ctx context.Context, plugins, scoring []config.Plugin) error {
	factory := a.handle.SharedInformerFactory()
	core := factory.Core().V1()
	volumes := core.PersistentVolumes()
	if err := volumes.Informer().AddIndexers(cache.Indexers{byClaim: claimIndex}); err != nil {
		return err
	}
	a.pods = core.Pods().Lister()
	holding := &snapshot{takes: counts}
	made, err := a.newFramework(ctx, holding, asking(plugins))
	if err != nil {
		return err
	}
	a.inspector = &inspector{framework: made, extenders: a.handle.Extenders(), snapshot: holding}
	if err := a.prepareScores(ctx, scoring); err != nil {
		return err
	}
	if slices.ContainsFunc(plugins, func(p config.Plugin) bool { return p.Name == names.VolumeBinding }) {
		if a.shared, err = newShared(ctx, a.handle); err != nil {
			return err
		}
	}
	a.sorter = &sorter{
		claims: core.PersistentVolumeClaims().Lister(), volumes: volumes.Lister(), byClaim: volumes.Informer().GetIndexer(),
		scores: a.scorer != nil, whole: len(a.handle.Extenders()) > 0,
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.DynamicResourceAllocation) {
		a.sorter.devices = factory.Resource().V1().ResourceClaims().Lister()
		if manager := a.handle.SharedDRAManager(); manager != nil {
			a.sorter.classes = manager.DeviceClassResolver()
		}
	}
	return a.watch(factory, plugins)
}

func (a *Asker) prepareScores(ctx context.Context, scoring []config.Plugin) error {
	if len(scoring) == 0 {
		return nil
	}
	all := &snapshot{takes: bound}
	made, err := a.newFramework(ctx, all, scoringBy(scoring))
	if err != nil {
		return err
	}
	nodes := a.handle.SharedInformerFactory().Core().V1().Nodes().Lister()
	a.scorer = &scorer{
		framework: made, snapshot: all, weights: map[string]int64{}, kept: map[string]map[string]map[string]uint32{},
		renew: func() error { return all.renew(nodes, a.pods) },
	}
	for _, plugin := range scoring {
		a.scorer.weights[plugin.Name] = int64(plugin.Weight)
	}
	return nil
}

// Run answers questions until the context ends. Call Prepare first.
func (a *Asker) Run(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), a.synced...) {
		return
	}
	timer := time.NewTimer(never)
	defer timer.Stop()
	for ctx.Err() == nil {
		q, why, next := a.next(time.Now())
		if q != nil {
			a.slice(ctx, q, why)
			continue
		}
		timer.Reset(next)
		select {
		case <-ctx.Done():
		case <-a.wake:
		case <-timer.C:
		}
	}
	a.endWorks()
}

// why is the reason for which a question is worked on.
type why int

const (
	first   why = iota // the question has no answer yet
	named              // an object that its pods name has changed
	changed            // something else has changed, or its time has come
)

// wants returns why the question must be worked on next, and from when.
func (q *question) wants(causes uint64) (why, time.Time) {
	switch {
	case !q.answered:
		return first, q.due
	case q.named:
		return named, q.notUntil
	case q.causes < causes:
		return changed, q.notUntil
	}
	return changed, q.due
}

// next returns the next question to work on, or the time until there is one. When renewals may run, they come before
// first answers, because renewals rest most of the time. So neither can block the other.
func (a *Asker) next(now time.Time) (best *question, because why, wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	wait = never
	full := a.full()
	for _, q := range a.questions {
		is, from := q.wants(a.causes)
		if work := a.works[q]; work != nil {
			is, from = work.why, now
		} else if full(q, is) {
			continue
		}
		if is != first && from.Before(a.restUntil) {
			from = a.restUntil
		}
		if from.After(now) {
			wait = min(wait, from.Sub(now))
		} else if best == nil || a.turns.before(q, is, best, because) {
			best, because = q, is
		}
	}
	return best, because, wait
}

// full returns a function that reports whether a question cannot begin, because too many are worked on. The caller
// holds the lock.
func (a *Asker) full() func(*question, why) bool {
	all, ofOne := map[bool]int{}, map[string]int{}
	key := func(q *question, is why) string { return fmt.Sprint(is == first, q.asked.Namespace) }
	for _, q := range a.questions {
		if work := a.works[q]; work != nil {
			all[work.why == first]++
			ofOne[key(q, work.why)]++
		}
	}
	return func(q *question, is why) bool {
		return all[is == first] >= worksAtMost || ofOne[key(q, is)] >= worksOfOne
	}
}

// touched records that the answers of all questions may have changed.
func (a *Asker) touched() {
	a.mu.Lock()
	a.causes++
	open := len(a.questions) > 0
	a.mu.Unlock()
	if open {
		a.nudge()
	}
}

// claimTouched records that a claim or its volume has changed. Only questions that name the claim are answered again.
// Only answers for pods of its namespace can depend on it, so those of other namespaces are still kept.
func (a *Asker) claimTouched(namespace, name string) {
	a.mu.Lock()
	delete(a.kept, namespace)
	found := false
	for _, q := range a.questions {
		if q.asked.Namespace == namespace && q.claims.Has(name) {
			q.named, found = true, true
		}
	}
	a.mu.Unlock()
	if found {
		a.nudge()
	}
}
