package gangs

import (
	"k8s.io/apimachinery/pkg/types"
)

// InFlight is an allowed member whose Binding has no answer yet. It outlives the session.
type InFlight struct {
	Namespace, Name string
	UID             types.UID
	Node            string
	Annotations     map[string]string
	// Version is the resourceVersion in the Binding.
	Version string
	// Unknown means that the Binding was sent, but no answer arrived. It may still take effect until the pod changes.
	Unknown bool
	// committed means that the member is at Bind and its gang is committed.
	committed bool
}

// InFlight returns all Bindings without an answer, for the next Watch.
func (s *Store) InFlight() []InFlight {
	s.mu.Lock()
	defer s.mu.Unlock()
	flights := make([]InFlight, 0, len(s.inFlight))
	for _, flight := range s.inFlight {
		flights = append(flights, *flight)
	}
	return flights
}

// MayBeSent returns whether a Binding of the pod may still be sent, or sent again. A Binding of unknown fate may not,
// because it may already be written.
func (s *Store) MayBeSent(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	flight := s.inFlight[uid]
	return flight != nil && !flight.Unknown
}

// Settle removes a Binding of unknown fate after the cluster has shown its result. The pod is bound, deleted or
// changed. If it changed, the API server refuses a late Binding because of its old resourceVersion.
func (s *Store) Settle(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if flight := s.inFlight[uid]; flight != nil && flight.Unknown {
		delete(s.inFlight, uid)
	}
}
