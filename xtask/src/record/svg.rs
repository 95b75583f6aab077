//! Writes a transcript as an SVG that plays in a loop, with CSS alone, in the colours of the viewer's scheme.

use std::fmt::Write;
use std::time::Duration;

use super::transcript::{Line, Style, Transcript};

const FONT_SIZE: f32 = 13.0;
/// Advance of a character of common monospaced fonts, relative to their size.
const ADVANCE: f32 = 0.602;
const LINE_HEIGHT: f32 = 18.0;
const MARGIN: f32 = 14.0;

/// How long the last picture stays before the loop begins again.
const REST: Duration = Duration::from_secs(6);

/// The whole file.
pub fn render(transcript: &Transcript, columns: usize, rows: usize) -> String {
    let total = transcript.end + REST;
    let width = (columns as f32 * FONT_SIZE * ADVANCE + 2.0 * MARGIN).ceil();
    let height = rows as f32 * LINE_HEIGHT + 2.0 * MARGIN;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\" aria-label=\"exec-server demo in a terminal\">\n<style>\n"
    );
    style(&mut text, transcript, rows, total);
    let _ = write!(
        text,
        "</style>\n<clipPath id=\"w\"><rect x=\"0\" y=\"{MARGIN}\" width=\"{width}\" height=\"{}\"/></clipPath>\n\
         <rect class=\"b\" width=\"{width}\" height=\"{height}\" rx=\"8\"/>\n<g clip-path=\"url(#w)\"><g class=\"s\">\n",
        rows as f32 * LINE_HEIGHT
    );
    for (index, line) in
        transcript.lines.iter().enumerate().filter(|(_, line)| !line.spans.is_empty())
    {
        let baseline = MARGIN + index as f32 * LINE_HEIGHT + FONT_SIZE;
        let _ = writeln!(
            text,
            "<text class=\"l{index}\" x=\"{MARGIN}\" y=\"{baseline}\">{}</text>",
            spans(line)
        );
    }
    text.push_str("</g></g>\n</svg>\n");
    text
}

/// Colours, the moment at which each line appears, and the scrolling.
fn style(text: &mut String, transcript: &Transcript, rows: usize, total: Duration) {
    let percent = |time: Duration| 100.0 * time.as_secs_f32() / total.as_secs_f32();
    text.push_str(
        "svg{--back:#f6f8fa;--text:#1f2328;--dim:#59636e;--red:#b3261e;--green:#116329;--yellow:#7d4e00}\n\
         @media (prefers-color-scheme:dark){svg{--back:#15191f;--text:#e6edf3;--dim:#9198a1;--red:#ff8a80;--green:#56d364;--yellow:#e3b341}}\n",
    );
    let _ = writeln!(
        text,
        "text{{font:{FONT_SIZE}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;\
         fill:var(--text);animation-duration:{0}s;animation-iteration-count:infinite;animation-timing-function:step-end}}\n\
         .s{{animation:s {0}s step-end infinite}}\n\
         .b{{fill:var(--back);stroke:var(--dim);stroke-opacity:.4}}\n\
         .bold{{font-weight:700}}.dim{{fill:var(--dim)}}.red{{fill:var(--red)}}.green{{fill:var(--green)}}.yellow{{fill:var(--yellow)}}",
        total.as_secs_f32()
    );
    let mut scroll = String::from("@keyframes s{0%{transform:none}");
    let mut last = 0;
    for (index, line) in transcript.lines.iter().enumerate() {
        let at = percent(line.time);
        if !line.spans.is_empty() {
            let _ = writeln!(
                text,
                ".l{index}{{animation-name:a{index}}}@keyframes a{index}{{0%{{opacity:0}}{at:.2}%,100%{{opacity:1}}}}"
            );
        }
        let hidden = (index + 1).saturating_sub(rows);
        if hidden > last {
            last = hidden;
            let _ = write!(
                scroll,
                "{at:.2}%{{transform:translateY(-{}px)}}",
                hidden as f32 * LINE_HEIGHT
            );
        }
    }
    let end = last as f32 * LINE_HEIGHT;
    let _ = writeln!(text, "{scroll}100%{{transform:translateY(-{end}px)}}}}");
    // Without motion, the end is shown.
    let _ = writeln!(
        text,
        "@media (prefers-reduced-motion:reduce){{text,.s{{animation:none}}.s{{transform:translateY(-{end}px)}}}}"
    );
}

fn spans(line: &Line) -> String {
    let mut text = String::new();
    for (style, part) in &line.spans {
        let part = part.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let class = match style {
            Style::Plain => {
                text.push_str(&part);
                continue;
            }
            Style::Bold => "bold",
            Style::Dim => "dim",
            Style::Red => "red",
            Style::Green => "green",
            Style::Yellow => "yellow",
        };
        let _ = write!(text, "<tspan class=\"{class}\">{part}</tspan>");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_appears_at_its_time_and_markup_is_escaped() {
        let mut transcript = Transcript::new(20);
        transcript.add(b"\x1b[32ma <b>\x1b[0m & c\r\n", Duration::ZERO);
        transcript.add(b"\r\nlast\r\n", Duration::from_secs(2));
        transcript.finish(Duration::from_secs(4));
        let text = render(&transcript, 20, 2);
        assert!(
            text.contains("<tspan class=\"green\">a &lt;b&gt;</tspan> &amp; c</text>"),
            "{text}"
        );
        // 2 s of 10 s.
        assert!(text.contains("@keyframes a2{0%{opacity:0}20.00%,100%{opacity:1}}"), "{text}");
        assert!(text.contains("20.00%{transform:translateY(-18px)}"), "{text}");
        assert!(
            !text.contains("http://") || text.matches("http://").count() == 1,
            "no outside assets: {text}"
        );
    }
}
