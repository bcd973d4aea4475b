package main

import (
	"math"
	"slices"
	"time"
)

// Spread is the middle of values and how far they scatter: the quartiles, between which half of them lie.
type Spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"lower_quartile"`
	High   float64 `json:"upper_quartile"`
}

func spreadOf(values []float64) Spread {
	return Spread{Median: quantile(values, 0.5), Low: quantile(values, 0.25), High: quantile(values, 0.75)}
}

// quantile interpolates between the two values that are nearest. Of no values it is not a number.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	below := int(at)
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (at-float64(below))*(sorted[above]-sorted[below])
}

// ratios divides the values of the same round by each other: what disturbed the machine then disturbed both.
func ratios(of, to []float64) []float64 {
	divided := make([]float64, min(len(of), len(to)))
	for i := range divided {
		divided[i] = of[i] / to[i]
	}
	return divided
}

func milliseconds(durations []time.Duration) []float64 {
	values := make([]float64, len(durations))
	for i, d := range durations {
		values[i] = d.Seconds() * 1000
	}
	return values
}
