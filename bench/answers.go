package main

import "context"

func measureAnswers(ctx context.Context, r *session) ([]Group, error) {
	g := Group{Name: "answers", Title: "Answers of different sizes, one connection, synchronous_commit off", Unit: "ms",
		Axis: "bytes of the answer", Reference: namePageGORM}
	err := r.with(ctx, fast, 1, func(d *database, h *handles) error {
		for _, bytes := range r.size.answers {
			text := answerOf(bytes)
			arms := []arm{
				fresh(nameAnswer, h.plain, text),
				fresh(namePipelined, h.pipelined, text),
				duplicate(nameDuplicate, h.plain, text),
			}
			if text == nil {
				text = []byte("null") // the page's column has a value for no answer, or none; its statement is the same
			}
			arms = append(arms, pageGORM(namePageGORM, h.plain, text), pagePgx(namePagePgx, h.raw, text))
			c := r.comparison(1, arms...)
			c.rounds = max(leastRounds, c.rounds/2)
			if bytes >= 1_000_000 {
				c.deliveries = max(1, c.deliveries/10) // each takes long
			}
			if err := r.latencies(ctx, d, &g, thousands(bytes)+" B", float64(bytes), c); err != nil {
				return err
			}
		}
		return nil
	})
	return []Group{g}, err
}
