// The same service with Go's standard library: net/http, encoding/json, a map and a mutex.
// It refuses, decides and answers as the others do; what it leaves out are records, bans and the other algorithms.
package main

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

type asked struct {
	Key    string   `json:"key"`
	Limit  *int64   `json:"limit"`
	Window *float64 `json:"window"`
}

type answer struct {
	Key          string  `json:"key"`
	Allowed      bool    `json:"allowed"`
	Limit        int64   `json:"limit"`
	Remaining    int64   `json:"remaining"`
	Algorithm    string  `json:"algorithm"`
	RetryAfter   float64 `json:"retry_after"`
	ResetAfter   float64 `json:"reset_after"`
	BackoffLevel int     `json:"backoff_level"`
	Source       string  `json:"source"`
}

type window struct{ current, count, previous int64 }

var (
	mutex   sync.Mutex
	windows = map[string]window{}
)

// What a check names, or what holds if it does not; false if nobody could count that.
func numbers(one asked) (limit int64, seconds float64, good bool) {
	limit, seconds = 100, 60
	if one.Limit != nil {
		limit = *one.Limit
	}
	if one.Window != nil {
		seconds = *one.Window
	}
	return limit, seconds, one.Key != "" && limit >= 0 && seconds > 0
}

func decide(key string, limit int64, seconds float64) answer {
	now := float64(time.Now().UnixNano()) / 1e9
	index := int64(math.Floor(now / seconds))
	mutex.Lock()
	state, known := windows[key]
	if !known {
		state.current = index
	}
	if state.current != index {
		if state.current == index-1 {
			state.previous = state.count
		} else {
			state.previous = 0
		}
		state.current, state.count = index, 0
	}
	into := now/seconds - float64(index)
	used := float64(state.previous)*(1-into) + float64(state.count)
	allowed := used+1 <= float64(limit)
	if allowed {
		state.count++
		used++
	}
	windows[key] = state
	mutex.Unlock()
	left := (1 - into) * seconds
	retry := 0.0
	if !allowed {
		retry = retryAfter(state, limit, into, seconds)
	}
	return answer{key, allowed, limit, int64(math.Max(0, float64(limit)-used)), "sliding_window", retry, left + seconds, 0, "engine"}
}

// When the window before has faded far enough; it is this one if this one is full.
func retryAfter(state window, limit int64, into, seconds float64) float64 {
	room := float64(limit - 1 - state.count)
	if room >= 0 {
		return (1 - room/float64(state.previous) - into) * seconds
	}
	return (2 - math.Max(0, float64(limit-1))/math.Max(1, float64(state.count)) - into) * seconds
}

func check(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	var one asked
	if err := json.NewDecoder(r.Body).Decode(&one); err != nil {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	limit, seconds, good := numbers(one)
	if !good {
		http.Error(w, "bad value", http.StatusUnprocessableEntity)
		return
	}
	found := decide(one.Key, limit, seconds)
	reset := int64(found.ResetAfter) + 1
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("RateLimit-Policy", fmt.Sprintf(`"default";q=%d;w=%g`, found.Limit, seconds))
	header.Set("RateLimit", fmt.Sprintf(`"default";r=%d;t=%d`, found.Remaining, reset))
	header.Set("X-RateLimit-Limit", strconv.FormatInt(found.Limit, 10))
	header.Set("X-RateLimit-Remaining", strconv.FormatInt(found.Remaining, 10))
	header.Set("X-RateLimit-Reset", strconv.FormatInt(time.Now().Unix()+reset, 10))
	header.Set("X-Process-Time", fmt.Sprintf("%.6f", time.Since(began).Seconds()))
	if !found.Allowed {
		header.Set("Retry-After", strconv.FormatInt(int64(found.RetryAfter)+1, 10))
	}
	json.NewEncoder(w).Encode(found)
}

func batch(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	var many struct {
		Checks []asked `json:"checks"`
	}
	if err := json.NewDecoder(r.Body).Decode(&many); err != nil {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	found := make([]answer, len(many.Checks))
	for i, one := range many.Checks {
		limit, seconds, good := numbers(one)
		if !good {
			http.Error(w, "bad value", http.StatusUnprocessableEntity)
			return
		}
		found[i] = decide(one.Key, limit, seconds)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Process-Time", fmt.Sprintf("%.6f", time.Since(began).Seconds()))
	json.NewEncoder(w).Encode(map[string][]answer{"decisions": found})
}

func main() {
	http.HandleFunc("/check", check)
	http.HandleFunc("/check/batch", batch)
	http.ListenAndServe("127.0.0.1:"+os.Args[1], nil)
}
