// The same service with Go's standard library: net/http, encoding/json, a map and a mutex.
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

func decide(one asked) answer {
	limit, seconds := int64(100), 60.0
	if one.Limit != nil {
		limit = *one.Limit
	}
	if one.Window != nil {
		seconds = *one.Window
	}
	now := float64(time.Now().UnixNano()) / 1e9
	index := int64(math.Floor(now / seconds))
	mutex.Lock()
	state, known := windows[one.Key]
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
	windows[one.Key] = state
	mutex.Unlock()
	left := (1 - into) * seconds
	retry := 0.0
	if !allowed {
		retry = left
	}
	return answer{one.Key, allowed, limit, int64(math.Max(0, float64(limit)-used)), "sliding_window", retry, left + seconds, 0, "memory"}
}

func check(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	var one asked
	if err := json.NewDecoder(r.Body).Decode(&one); err != nil || one.Key == "" {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	found := decide(one)
	reset := int64(found.ResetAfter) + 1
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("RateLimit-Policy", fmt.Sprintf(`"default";q=%d;w=60`, found.Limit))
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
	var many struct {
		Checks []asked `json:"checks"`
	}
	if err := json.NewDecoder(r.Body).Decode(&many); err != nil {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	found := make([]answer, len(many.Checks))
	for i, one := range many.Checks {
		found[i] = decide(one)
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string][]answer{"decisions": found})
}

func main() {
	http.HandleFunc("/check", check)
	http.HandleFunc("/check/batch", batch)
	http.ListenAndServe("127.0.0.1:"+os.Args[1], nil)
}
