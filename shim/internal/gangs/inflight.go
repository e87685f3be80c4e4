package gangs

import (
	"k8s.io/apimachinery/pkg/types"
)

// InFlight is a member past Permit whose Binding has no answer yet. It outlives the session.
type InFlight struct {
	Namespace, Name string
	UID             types.UID
	Node            string
	Annotations     map[string]string
	// Version is the resourceVersion that the Binding demands.
	Version string
	// Unknown: the Binding was sent and its answer never came. It may land until the pod changes.
	Unknown bool
}

// InFlight lists them for the next Watch.
func (s *Store) InFlight() []InFlight {
	s.mu.Lock()
	defer s.mu.Unlock()
	flights := make([]InFlight, 0, len(s.inFlight))
	for _, flight := range s.inFlight {
		flights = append(flights, *flight)
	}
	return flights
}

// Settle forgets a Binding of unknown fate that the cluster has answered meanwhile: the pod is
// bound, gone, or changed, so that the resourceVersion in a late Binding is refused.
func (s *Store) Settle(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if flight := s.inFlight[uid]; flight != nil && flight.Unknown {
		delete(s.inFlight, uid)
	}
}
