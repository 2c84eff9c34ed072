// Package paced is what the honest clients have in common: numbered records at a steady offer, and what became of them.
package paced

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"
)

// Work is read from standard input.
type Work struct {
	Bootstrap   []string `json:"bootstrap"`
	Topic       string   `json:"topic"`
	ClientID    string   `json:"client_id"`
	PerS        float64  `json:"per_s"`
	Seconds     float64  `json:"seconds"`
	RecordBytes int      `json:"record_bytes"`
	BufferBytes int      `json:"buffer_bytes"`
	// Reads so many records as a member of a group, instead of producing.
	Reads int `json:"reads"`
}

// Result is written to standard output.
type Result struct {
	mutex  sync.Mutex
	Sent   int      `json:"sent"`
	Acked  []int    `json:"acked"`
	Errors []string `json:"errors"`
	// What a member of a group read, and when, in seconds since 1970.
	Read  []int     `json:"read"`
	Times []float64 `json:"times"`
	// How often it became a member.
	Joined int `json:"joined"`
}

// Acknowledged notes a record that the broker has.
func (r *Result) Acknowledged(number int) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.Acked = append(r.Acked, number)
}

// Failed notes what the library gave up.
func (r *Result) Failed(err error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.Errors = append(r.Errors, err.Error())
}

// Received notes a record that a member of a group has read.
func (r *Result) Received(value []byte) {
	number, err := strconv.Atoi(string(value[:12]))
	if err != nil {
		r.Failed(err)
		return
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.Read = append(r.Read, number)
	r.Times = append(r.Times, float64(time.Now().UnixMicro())/1e6)
}

// Main reads the work, has it done, and tells what became of it.
func Main(produce, read func(work Work, result *Result)) {
	var work Work
	if err := json.NewDecoder(os.Stdin).Decode(&work); err != nil {
		fmt.Fprintln(os.Stderr, "no work on standard input:", err)
		os.Exit(2)
	}
	var result Result
	if work.Reads > 0 {
		read(work, &result)
	} else {
		produce(work, &result)
	}
	if err := json.NewEncoder(os.Stdout).Encode(&result); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Group is the name of the work's group.
func (w Work) Group() string { return "group-" + w.Topic }

// Over is done when the work's time is over.
func (w Work) Over() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Duration(w.Seconds*float64(time.Second)))
}

// Must ends the program if a client cannot be made.
func Must[T any](made T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return made
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

// Record is the numbered record: twelve digits, then what libraries that compress cannot make smaller.
func (w Work) Record(number int) []byte {
	record := make([]byte, 0, w.RecordBytes)
	record = fmt.Appendf(record, "%012d ", number)
	for len(record) < w.RecordBytes {
		record = append(record, letters[rand.IntN(len(letters))])
	}
	return record
}

// Offer calls send at the work's rate until its time is over; send may block, and what was missed is not made up for.
func (w Work) Offer(result *Result, send func(number int, value []byte)) {
	begin := time.Now()
	due := begin
	step := time.Duration(float64(time.Second) / w.PerS)
	for time.Since(begin).Seconds() < w.Seconds {
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
		} else if wait < -time.Second {
			due = time.Now()
		}
		due = due.Add(step)
		send(result.Sent, w.Record(result.Sent))
		result.Sent++
	}
}
