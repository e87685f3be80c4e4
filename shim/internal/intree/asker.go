package intree

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"muster.dev/shim/internal/musterv1"
)

const (
	// renewAfter is the minimum time between two renewals of one question.
	renewAfter = time.Second
	// onceMoreAfter is how long after a renewal the question is answered once more, because a plugin's own cache may
	// have missed the last change. No round lasts that long.
	onceMoreAfter = 2 * renewAfter
	// sliceFor is how long one question is worked on before another question may be.
	sliceFor = 25 * time.Millisecond
	// restShare bounds the cost of renewals: a slice of time T is followed by a pause of restShare × T. After a long rest,
	// pauses of up to credit in total may be postponed. So a rare change leads to answers at once.
	restShare = 4
	credit    = 4 * time.Second
	// maxJobs bounds how many questions are worked on at a time, and maxJobsOfNamespace how many of one namespace. First
	// answers and renewals count separately.
	maxJobs, maxJobsOfNamespace = 64, 16
	// retryAfter is the pause before the next try if a pod or a claim is missing. The informers may receive them a
	// moment later than the service does.
	retryAfter = 50 * time.Millisecond
	// retries bounds these tries. After the last try, the report omits the missing pods and names the missing claims.
	retries = 6
	never   = 24 * time.Hour
	// scoresAfter is the minimum time between two answers that only renew scores. Changes that affect only scores cause no
	// renewal, because they never make pods fit.
	scoresAfter = 30 * time.Second
	// reportAfter is the pause before a failed report is sent again. It doubles up to maxReportPause.
	reportAfter, maxReportPause = time.Second, time.Minute
)

// Report sends one report to the service.
type Report func(context.Context, *musterv1.ReportInTreeRequest) error

// Asker stores the service's questions, answers them, and answers again when a cause may have changed. It does all work on
// one goroutine, but checks the nodes of a batch in parallel (see coresShare).
type Asker struct {
	handle   fwk.Handle
	registry frameworkruntime.Registry
	report   Report
	wake     chan struct{}

	mu          sync.Mutex
	epoch       uint64
	questions   map[string]*question
	causes      uint64             // counts events that may change the answers of all questions
	answerCache map[string]answers // answers of this round, by namespace

	// Run waits until these informers are synced. Objects that a handler receives in the first listing are not causes.
	synced []cache.InformerSynced

	// The following fields are used only on Run's goroutine.
	pods      corelisters.PodLister
	inspector *inspector
	scorer    *scorer // nil if the profile has no plugin that scores by preferences
	sorter    *sorter
	round     round
	jobs      map[*question]*answerJob
	turns     turns
	restUntil time.Time // end of the renewals' pause; far in the past after a long rest
	sliceFor  time.Duration
	shared    *sharedClaims // nil if the profile has no VolumeBinding; safe for any goroutine
}

// question is a question of the service. The lock guards the fields below epoch.
type question struct {
	message      *musterv1.InTreeQuestion
	epoch        uint64
	claims       sets.Set[string] // names of the claims that its pods name
	due          time.Time        // time of the first answer, and later of the next routine renewal
	notUntil     time.Time        // no renewal before this time
	answered     bool
	claimChanged bool   // a claim that its pods name has changed since its last inspection began
	causes       uint64 // Asker.causes when its last inspection began

	// The following fields are used only on Run's goroutine.
	tries, failures int
	lastDigest      []byte // digest of the last report
}

// New returns an asker that answers nothing until Run is called. gpus are the resources that count GPUs.
func New(handle fwk.Handle, report Report, gpus []string) *Asker {
	return &Asker{
		handle: handle, registry: registryOf(gpus), report: report, wake: make(chan struct{}, 1), questions: map[string]*question{},
		jobs: map[*question]*answerJob{}, turns: newTurns(), sliceFor: sliceFor,
	}
}

// Begin starts a session: it forgets the questions of an earlier session. Epoch 0 means that no session is open.
func (a *Asker) Begin(epoch uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.epoch = epoch
	clear(a.questions)
}

// Ask stores a question. It does not block. A question without pods withdraws the gang's last question.
func (a *Asker) Ask(message *musterv1.InTreeQuestion) {
	a.mu.Lock()
	if len(message.Names) == 0 {
		delete(a.questions, message.Gang)
	} else if a.epoch != 0 && len(message.Names) == len(message.Uids) {
		a.questions[message.Gang] = &question{message: message, epoch: a.epoch, causes: a.causes}
	}
	a.mu.Unlock()
	a.wakeUp()
}

// Open returns the number of stored questions.
func (a *Asker) Open() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.questions)
}

// wakeUp makes Run look for work.
func (a *Asker) wakeUp() {
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
	return a.prepare(ctx, a.filterPlugins(plugins), scoringPlugins(plugins))
}

func (a *Asker) prepare(ctx context.Context, plugins, scoring []config.Plugin) error {
	factory := a.handle.SharedInformerFactory()
	core := factory.Core().V1()
	volumes := core.PersistentVolumes()
	if err := volumes.Informer().AddIndexers(cache.Indexers{byClaim: claimKeys}); err != nil {
		return err
	}
	a.pods = core.Pods().Lister()
	view := &snapshot{nodeLister: core.Nodes().Lister(), podLister: a.pods, selects: isBoundWithClaims}
	instance, err := a.newFramework(ctx, view, filterSet(plugins))
	if err != nil {
		return err
	}
	a.inspector = &inspector{framework: instance, extenders: a.handle.Extenders(), snapshot: view}
	if err := a.prepareScores(ctx, scoring); err != nil {
		return err
	}
	if slices.ContainsFunc(plugins, func(p config.Plugin) bool { return p.Name == names.VolumeBinding }) {
		if a.shared, err = newSharedClaims(ctx, a.handle); err != nil {
			return err
		}
	}
	a.sorter = &sorter{
		claims: core.PersistentVolumeClaims().Lister(), volumes: volumes.Lister(), byClaim: volumes.Informer().GetIndexer(),
		devices: factory.Resource().V1().ResourceClaims().Lister(), classes: a.handle.SharedDRAManager().DeviceClassResolver(),
		scores: a.scorer != nil, wholeSpec: len(a.handle.Extenders()) > 0,
	}
	return a.watch(factory, plugins)
}

func (a *Asker) prepareScores(ctx context.Context, scoring []config.Plugin) error {
	if len(scoring) == 0 {
		return nil
	}
	boundPods := &snapshot{nodeLister: a.handle.SharedInformerFactory().Core().V1().Nodes().Lister(), podLister: a.pods, selects: isBound}
	instance, err := a.newFramework(ctx, boundPods, scoreSet(scoring))
	if err != nil {
		return err
	}
	a.scorer = &scorer{
		framework: instance, snapshot: boundPods, weights: map[string]int64{}, cache: map[string]map[string]map[string]uint32{},
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
		q, reason, next := a.nextQuestion(time.Now())
		if q != nil {
			a.runSlice(ctx, q, reason)
			continue
		}
		timer.Reset(next)
		select {
		case <-ctx.Done():
		case <-a.wake:
		case <-timer.C:
		}
	}
	a.stopJobs()
}

// workReason is the reason why a question is worked on.
type workReason int

const (
	unanswered   workReason = iota // the question has no answer yet
	claimChanged                   // a claim that its pods name has changed, or the claim's volume
	otherChange                    // another change, or its time has come
)

// nextWork returns the reason why the question must be worked on next, and the earliest time.
func (q *question) nextWork(causes uint64) (workReason, time.Time) {
	switch {
	case !q.answered:
		return unanswered, q.due
	case q.claimChanged:
		return claimChanged, q.notUntil
	case q.causes < causes:
		return otherChange, q.notUntil
	}
	return otherChange, q.due
}

// nextQuestion returns the next question to work on, or the time until there is such a question. Renewals that may run
// come before first answers: because renewals pause most of the time, neither can block the other.
func (a *Asker) nextQuestion(now time.Time) (nextQuestion *question, nextReason workReason, wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	wait = never
	full := a.jobLimiter()
	for _, q := range a.questions {
		reason, from := q.nextWork(a.causes)
		if job := a.jobs[q]; job != nil {
			reason, from = job.reason, now
		} else if full(q, reason) {
			continue
		}
		if reason != unanswered && from.Before(a.restUntil) {
			from = a.restUntil
		}
		if from.After(now) {
			wait = min(wait, from.Sub(now))
		} else if nextQuestion == nil || a.turns.isBefore(q, reason, nextQuestion, nextReason) {
			nextQuestion, nextReason = q, reason
		}
	}
	return nextQuestion, nextReason, wait
}

// jobLimiter returns a predicate: is the limit of jobs reached, so that no job may begin on this question now? First
// answers and renewals are two stages with a limit each. The caller holds the lock.
func (a *Asker) jobLimiter() func(*question, workReason) bool {
	jobsByStage, jobsOfNamespace := map[bool]int{}, map[string]int{}
	key := func(q *question, reason workReason) string {
		return fmt.Sprint(reason == unanswered, q.message.Namespace)
	}
	for _, q := range a.questions {
		if job := a.jobs[q]; job != nil {
			jobsByStage[job.reason == unanswered]++
			jobsOfNamespace[key(q, job.reason)]++
		}
	}
	return func(q *question, reason workReason) bool {
		return jobsByStage[reason == unanswered] >= maxJobs || jobsOfNamespace[key(q, reason)] >= maxJobsOfNamespace
	}
}

// recordCause records that the answers of all questions may have changed.
func (a *Asker) recordCause() {
	a.mu.Lock()
	a.causes++
	open := len(a.questions) > 0
	a.mu.Unlock()
	if open {
		a.wakeUp()
	}
}

// recordClaimChange records that a claim or its volume has changed. Only questions that name the claim are answered
// again. Only answers for pods of the claim's namespace can depend on the claim, so the cache keeps all other answers.
func (a *Asker) recordClaimChange(namespace, name string) {
	a.mu.Lock()
	delete(a.answerCache, namespace)
	isNamed := false
	for _, q := range a.questions {
		if q.message.Namespace == namespace && q.claims.Has(name) {
			q.claimChanged, isNamed = true, true
		}
	}
	a.mu.Unlock()
	if isNamed {
		a.wakeUp()
	}
}
