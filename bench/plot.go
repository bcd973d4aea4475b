package main

import (
	"bytes"
	"image/color"
	"math"
	"os"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	plotWidth  = 800
	lineHeight = 400
	border     = 8
	barWidth   = 11 // of one bar
	barGap     = 8  // between arms
	margin     = 90 // for the title, the axis and the legend

	// mostBars is how many settings are drawn as bars side by side. More are a line.
	mostBars = 3
)

// colours can be told apart by those who see fewer of them (Okabe and Ito's).
var colours = []color.Color{
	color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0xe6, 0x9f, 0x00, 0xff}, color.RGBA{0x00, 0x9e, 0x73, 0xff},
	color.RGBA{0xd5, 0x5e, 0x00, 0xff}, color.RGBA{0xcc, 0x79, 0xa7, 0xff}, color.RGBA{0x56, 0xb4, 0xe9, 0xff},
	color.RGBA{0x55, 0x55, 0x55, 0xff},
}

func colour(i int) color.Color { return colours[i%len(colours)] }

// drawGroup writes a group's plot.
func drawGroup(g *Group, path string) error {
	p := newPlot(g)
	drawOn, height := drawLines, vg.Length(lineHeight)
	if settings := len(g.settings()); settings <= mostBars {
		drawOn, height = drawBars, vg.Length(margin+len(g.arms())*(settings*barWidth+barGap))
	}
	if err := drawOn(p, g); err != nil {
		return err
	}
	canvas := vgsvg.New(plotWidth, height)
	p.Draw(draw.Crop(draw.New(canvas), border, -border, border, -border))
	var image bytes.Buffer
	if _, err := canvas.WriteTo(&image); err != nil {
		return err
	}
	return os.WriteFile(path, readable(image.Bytes()), 0o644) //nolint:gosec // it is for everyone
}

// readable names fonts that every system has, beside the one by which the texts were measured.
func readable(image []byte) []byte {
	return bytes.ReplaceAll(image, []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif"))
}

func newPlot(g *Group) *plot.Plot {
	p := plot.New()
	sans := font.Font{Typeface: "Liberation", Variant: "Sans", Size: 11}
	for _, style := range []*text.Style{
		&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle,
	} {
		style.Font = sans
	}
	p.Title.TextStyle.Font = sans
	p.Title.TextStyle.Font.Size, p.Title.Padding = 13, 12
	p.Legend.Padding, p.Legend.XOffs = 3, -4
	p.Title.Text = g.Title
	p.BackgroundColor = color.White
	return p
}

// drawBars draws a bar for each arm and setting, from the top down, with the quartiles as whiskers.
func drawBars(p *plot.Plot, g *Group) error {
	arms, settings := g.arms(), g.settings()
	slices.Reverse(arms) // an axis goes up
	p.X.Label.Text, p.X.Min = g.Unit, 0
	for i, setting := range settings {
		offset := (float64(len(settings)-1)/2 - float64(i)) * barWidth
		values := make(plotter.Values, len(arms))
		var whiskers whiskers
		var labels plotter.XYLabels
		for row, arm := range arms {
			s, found := g.find(arm, setting)
			if !found {
				continue
			}
			values[row] = s.Median
			whiskers.add(s.Median, float64(row), s.Spread)
			labels.XYs = append(labels.XYs, plotter.XY{X: s.High, Y: float64(row)})
			labels.Labels = append(labels.Labels, number(s.Median))
		}
		bars, err := plotter.NewBarChart(values, barWidth)
		if err != nil {
			return err
		}
		bars.Horizontal, bars.Offset, bars.Color, bars.LineStyle.Width = true, vg.Length(offset), colour(i), 0
		drawn, err := plotter.NewXErrorBars(&whiskers)
		if err != nil {
			return err
		}
		written, err := plotter.NewLabels(&labels)
		if err != nil {
			return err
		}
		for at := range written.TextStyle {
			written.TextStyle[at].Font = p.X.Tick.Label.Font
			written.TextStyle[at].Font.Size, written.TextStyle[at].YAlign = 9, text.YCenter
		}
		written.Offset = vg.Point{X: 4, Y: vg.Length(offset)}
		p.Add(bars, shifted{drawn, vg.Length(offset)}, written)
		if setting != "" {
			p.Legend.Add(setting, bars)
		}
	}
	p.NominalY(arms...)
	p.X.Tick.Marker = commas{}
	p.Legend.Top = true
	p.X.Max *= 1.08 // for the labels
	if len(settings) > 1 {
		p.X.Max *= 1.12 // for the legend
	}
	return nil
}

// whiskers are the quartiles around medians, along the axis of the values.
type whiskers struct {
	plotter.XYs
	errors []struct{ Low, High float64 }
}

func (w *whiskers) add(x, y float64, s Spread) {
	w.XYs = append(w.XYs, plotter.XY{X: x, Y: y})
	w.errors = append(w.errors, struct{ Low, High float64 }{s.Low - s.Median, s.High - s.Median})
}

// XError implements plotter.XErrorer.
func (w *whiskers) XError(i int) (low, high float64) { return w.errors[i].Low, w.errors[i].High }

// YError implements plotter.YErrorer.
func (w *whiskers) YError(i int) (low, high float64) { return w.errors[i].Low, w.errors[i].High }

// shifted draws something beside its place, as a bar with an offset is.
type shifted struct {
	plot.Plotter
	by vg.Length
}

// Plot implements plot.Plotter.
func (s shifted) Plot(c draw.Canvas, p *plot.Plot) {
	c.Min.Y += s.by
	c.Max.Y += s.by
	s.Plotter.Plot(c, p)
}

// drawLines draws a line for each arm over the settings.
func drawLines(p *plot.Plot, g *Group) error {
	p.X.Label.Text, p.Y.Label.Text = g.Axis, g.Unit
	p.Legend.Top, p.Legend.Left = true, true
	steps := newSteps(g)
	for i, arm := range g.arms() {
		var points whiskers
		for _, s := range g.Series {
			if s.Arm == arm {
				points.add(steps.at(s.At), s.Median, s.Spread)
			}
		}
		line, dots, err := plotter.NewLinePoints(points.XYs)
		if err != nil {
			return err
		}
		drawn, err := plotter.NewYErrorBars(&points)
		if err != nil {
			return err
		}
		line.Color, dots.Color, drawn.Color = colour(i), colour(i), colour(i)
		line.Width, dots.Shape, dots.Radius = 1.5, draw.CircleGlyph{}, 2.5
		if i >= len(colours) {
			line.Dashes = []vg.Length{4, 3}
		}
		p.Add(line, dots, drawn)
		p.Legend.Add(arm, line, dots)
	}
	p.X.Tick.Marker = steps
	p.Y.Tick.Marker = commas{}
	p.Add(plotter.NewGrid())
	scale(p, g)
	return nil
}

// scale begins at nothing, unless the values are so far apart that most of them would be there.
func scale(p *plot.Plot, g *Group) {
	const far = 50
	low, high := math.Inf(1), math.Inf(-1)
	for _, s := range g.Series {
		low, high = math.Min(low, s.Low), math.Max(high, s.High)
	}
	if low > 0 && high > far*low {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, powers{}
		p.Y.Min, p.Y.Max = math.Pow(10, math.Floor(math.Log10(low))), 2*high
		return
	}
	p.Y.Min, p.Y.Max = 0, 1.25*high
}

// steps puts the settings at equal distances: each is some times the one before.
type steps struct {
	values []float64
	names  []string
}

func newSteps(g *Group) steps {
	var s steps
	for _, setting := range g.settings() {
		i := slices.IndexFunc(g.Series, func(one Series) bool { return one.Setting == setting })
		s.values = append(s.values, g.Series[i].At)
		s.names = append(s.names, number(g.Series[i].At))
	}
	return s
}

func (s steps) at(value float64) float64 { return float64(slices.Index(s.values, value)) }

// Ticks implements plot.Ticker.
func (s steps) Ticks(_, _ float64) []plot.Tick {
	ticks := make([]plot.Tick, len(s.names))
	for i, name := range s.names {
		ticks[i] = plot.Tick{Value: float64(i), Label: name}
	}
	return ticks
}

// powers are those of ten.
type powers struct{}

// Ticks implements plot.Ticker.
func (powers) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for at := low; at <= high; at *= 10 {
		ticks = append(ticks, plot.Tick{Value: at, Label: number(at)})
	}
	return ticks
}

// commas writes an axis' numbers as the tables do.
type commas struct{}

// Ticks implements plot.Ticker.
func (commas) Ticks(low, high float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(low, high)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = number(ticks[i].Value)
		}
	}
	return ticks
}
