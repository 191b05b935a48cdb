#include "grammars/native/completion_search.hpp"

#include <algorithm>
#include <unordered_map>

namespace safegen {

namespace {
template <class Visit>
void each_frame(const State& state, Visit&& visit) {  // each once, ancestors too; none where no node is judged by its text
    std::vector<const Frame*> open;
    std::unordered_set<const Frame*> seen;
    const auto add = [&](const FramePtr& frame) {
        if (seen.insert(frame.get()).second) open.push_back(frame.get());
    };
    if (state.outer() == kInfinite && !state.sensitive()) return;
    for (const Top& top : state.tops) add(top.frame);
    while (!open.empty()) {
        const Frame* at = open.back();
        open.pop_back();
        visit(*at);
        for (const FramePtr& parent : at->parents) add(parent);
    }
}

// Without the blanks between JSON tokens: what a value means does not hang on them.
std::string without_blanks(std::string_view text) {
    std::string out;
    bool inside = false;
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (inside && c == '\\' && i + 1 < text.size()) out.push_back(text[i++]);
        else if (c == '"') inside = !inside;
        else if (!inside && (c == ' ' || c == '\n' || c == '\t' || c == '\r')) continue;
        out.push_back(text[i]);
    }
    return out;
}

bool is_judged_by_text(const Machine& machine, const Frame& frame) {
    return frame.phase == Frame::Verify || (frame.phase == Frame::ArrayItem && machine.grammar().node(frame.node).array->unique);
}

// Everything that decides what may follow `state` after `text`; of nodes that are judged by their text, what was read of
// them. followed: whether a verified node is followed elsewhere.
template <class Followed>
void mix_state(const Machine& machine, const State& state, const std::string& text, Hash128& hash, Followed&& followed) {
    hash.mix(state.tops.size() * 2 + (state.can_end ? 1 : 0));
    for (const Top& top : state.tops) {
        const Hash128 frame = machine.frame_hash(*top.frame);
        hash.mix(top.expr);
        hash.mix(frame.a);
        hash.mix(frame.b);
        if (top.frame->phase == Frame::ObjectKey) hash.mix(std::string_view(text).substr(top.start));
    }
    uint32_t from = kInfinite;
    each_frame(state, [&](const Frame& frame) {
        if (is_judged_by_text(machine, frame) && !followed(frame)) from = std::min(from, frame.start);
    });
    if (from != kInfinite) hash.mix(without_blanks(std::string_view(text).substr(from)));
}

// Whether what may follow hangs on the text of an open item or node.
template <class Followed>
bool reads_by_text(const Machine& machine, const State& state, Followed&& followed) {
    bool found = false;
    each_frame(state, [&](const Frame& frame) { found |= is_judged_by_text(machine, frame) && !followed(frame); });
    return found;
}

// Whether `byte` goes on with an escape of a character that could have been spelled as it is: one that begins at `from`
// or later and is neither a control character's nor the second half of a pair.
bool is_needless_escape(const std::string& text, uint8_t byte, size_t from) {
    for (size_t back = 1; back <= 3 && back + 1 < text.size(); ++back) {
        const size_t slash = text.size() - back - 1;
        if (slash < from || text[slash] != '\\' || text[slash + 1] != 'u' || text[slash - 1] == '\\') continue;
        const bool second = slash >= 6 && text.compare(slash - 6, 2, "\\u") == 0 && (text[slash - 4] | 0x20) == 'd' && text[slash - 3] > '7';
        return !second && byte != '0' && (back < 3 || byte != '1');
    }
    return false;
}

// The automata that masks are made with must not fill up with states that only a search has met.
bool is_crowded(const std::vector<Lexeme>& lexemes) {
    return std::any_of(lexemes.begin(), lexemes.end(), [](const Lexeme& l) { return l.table->num_states() > l.table->options().max_states / 2; });
}

bool is_followed(const Frame& frame, const std::vector<Trial>& trials) {
    return std::any_of(trials.begin(), trials.end(), [&](const Trial& t) { return t.is_of(frame); });
}

size_t num_leaves(const Predicate& predicate) {
    size_t sum = predicate.kind == Predicate::Matches ? 1 : 0;
    for (const auto& kid : predicate.kids) sum += num_leaves(*kid);
    return sum;
}
}  // namespace

bool Excluded::reached(const std::string& text) const {
    return std::any_of(texts.begin(), texts.end(), [&](const Text& e) {
        return text.size() == e.start + e.bytes.size() && text.compare(e.start, e.bytes.size(), e.bytes) == 0;
    });
}

void Excluded::mix_ahead(const std::string& text, Hash128& hash) const {
    for (size_t i = 0; i < texts.size(); ++i) {
        const Text& e = texts[i];
        if (text.size() < e.start || text.size() >= e.start + e.bytes.size()) continue;
        if (text.compare(e.start, std::string::npos, e.bytes, 0, text.size() - e.start) != 0) continue;
        hash.mix(i);
        hash.mix(text.size());
    }
}

// --- trials ---------------------------------------------------------------------------------------------------------

Trial::Trial(uint32_t start, NodeId node, const Predicate& predicate) : start_(start), node_(node), predicate_(&predicate) { add_leaves(predicate); }

void Trial::add_leaves(const Predicate& predicate) {
    if (predicate.kind == Predicate::Matches) leaves_.push_back({predicate.grammar.get(), Machine(*predicate.grammar).start()});
    if (predicate.kind == Predicate::UniqueItems) asks_by_text_ = true;
    for (const auto& kid : predicate.kids) add_leaves(*kid);
}

uint64_t Trial::read(std::string_view more) {
    uint64_t work = 0;
    for (const char c : more) {
        text_.push_back(c);
        for (Leaf& leaf : leaves_) {
            work += leaf.state.tops.size();
            if (!leaf.state.dead()) leaf.state = Machine(*leaf.grammar).step(leaf.state, static_cast<uint8_t>(c), text_);
        }
    }
    return work;
}

Trial::Truth Trial::truth(const Predicate& predicate, size_t leaf) const {
    size_t never = 0, always = 0;
    for (const auto& kid : predicate.kids) {
        const Truth one = truth(*kid, leaf);
        never += one == Truth::Never;
        always += one == Truth::Always;
        leaf += num_leaves(*kid);
    }
    const size_t n = predicate.kids.size();
    const auto told = [](bool no, bool yes) { return no ? Truth::Never : yes ? Truth::Always : Truth::Open; };
    switch (predicate.kind) {
        case Predicate::Matches: return told(leaves_[leaf].state.dead(), false);
        case Predicate::UniqueItems: return Truth::Open;
        case Predicate::Not: return told(always == 1, never == 1);
        case Predicate::All: return told(never > 0, always == n);
        case Predicate::Any: return told(never == n, always > 0);
        case Predicate::ExactlyOne: return told(never == n || always > 1, always == 1 && never == n - 1);
    }
    return Truth::Open;
}

uint32_t Trial::needed(const Predicate& predicate, size_t leaf) const {
    if (predicate.kind == Predicate::Matches) {
        const State& state = leaves_[leaf].state;
        uint32_t least = state.can_end ? 0 : kInfinite;
        for (const Top& top : state.tops) least = std::min(least, Machine(*leaves_[leaf].grammar).cost(top));
        return least;
    }
    if (predicate.kind == Predicate::Not || predicate.kind == Predicate::UniqueItems) return 0;
    const bool all = predicate.kind == Predicate::All;
    uint32_t best = all || predicate.kids.empty() ? 0 : kInfinite;
    for (const auto& kid : predicate.kids) {
        const uint32_t one = needed(*kid, leaf);
        best = all ? std::max(best, one) : std::min(best, one);
        leaf += num_leaves(*kid);
    }
    return best;
}

bool Trial::by_text() const {
    const auto leaf_is = [](const Leaf& leaf) { return reads_by_text(Machine(*leaf.grammar), leaf.state, [](const Frame&) { return false; }); };
    return asks_by_text_ || std::any_of(leaves_.begin(), leaves_.end(), leaf_is);
}

size_t Trial::num_lexemes() const {
    size_t sum = 0;
    for (const Leaf& leaf : leaves_) sum += leaf.state.tops.size();
    return sum;
}

void Trial::add_lexemes(std::vector<Lexeme>& lexemes) const {
    for (const Leaf& leaf : leaves_)
        for (const Top& top : leaf.state.tops) lexemes.push_back({&leaf.grammar->exprs(), top.expr});
}

void Trial::end(std::string_view more, std::vector<bool>::const_iterator ends) {
    text_ += more;
    for (Leaf& leaf : leaves_) {
        const size_t n = leaf.state.tops.size();
        leaf.state = Machine(*leaf.grammar).finish(leaf.state, ends, text_);
        ends += n;
    }
}

void Trial::mix(Hash128& hash) const {
    hash.mix(node_);
    for (const Leaf& leaf : leaves_) mix_state(Machine(*leaf.grammar), leaf.state, text_, hash, [](const Frame&) { return false; });
    if (asks_by_text_) hash.mix(without_blanks(text_));
}

// --- search ---------------------------------------------------------------------------------------------------------

Outlook Machine::Search::run(const State& state, const std::string& text) {
    uint64_t greedy_room = room_ / 4;
    origin_ = text.size();
    visit(state, text, {}, 0);
    while (!open_.empty() && room_ > 0) {
        const Place at = open_.top();
        open_.pop();
        Trail trail;
        if (at.state.can_end) return {Outlook::Open, at.text.substr(text.size())};
        if (greedy_room > 0)
            if (machine_.greedy_completion(at.state, at.text, excluded_, greedy_room, trail)) return {Outlook::Open, trail.text.substr(text.size())};
        for (const Ending& ending : endings(at)) follow(at, ending);
    }
    return {room_ > 0 && complete_ ? Outlook::Dead : Outlook::Unknown, {}};
}

// Reads the lexemes that are at hand at a place, all together.
Machine::Search::Reading::Reading(const Place& place, Exprs& table) : tops(place.state.tops) {
    for (const Top& top : tops) lexemes.push_back({&table, top.expr});
    for (const Trial& trial : place.trials) trial.add_lexemes(lexemes);
    points.push_back({place.text, {}});
    for (const Lexeme& lexeme : lexemes) points[0].exprs.push_back(lexeme.expr);
}

std::vector<uint8_t> Machine::Search::Reading::bytes_after(const Point& point) const {
    ByteSet first;
    for (size_t i = 0; i < tops.size(); ++i)
        if (point.exprs[i] != kEmpty) first = first | lexemes[i].table->expansion(point.exprs[i])->first;
    std::vector<uint8_t> bytes;
    first.each([&](uint8_t byte) { bytes.push_back(byte); });
    std::stable_sort(bytes.begin(), bytes.end(), [](uint8_t x, uint8_t y) { return taste(x) < taste(y); });
    return bytes;
}

Machine::Search::Reading::Point Machine::Search::Reading::after(const Point& point, uint8_t byte) const {
    Point next = {point.text + static_cast<char>(byte), point.exprs};
    for (size_t i = 0; i < lexemes.size(); ++i)
        if (next.exprs[i] != kEmpty) next.exprs[i] = lexemes[i].table->next(next.exprs[i], byte);
    return next;
}

std::vector<bool> Machine::Search::Reading::ends(const Point& point) const {
    std::vector<bool> out;
    for (size_t i = 0; i < lexemes.size(); ++i) out.push_back(point.exprs[i] != kEmpty && lexemes[i].table->nullable(point.exprs[i]));
    return out;
}

bool Machine::Search::Reading::in_key(const Point& point) const {
    for (size_t i = 0; i < tops.size(); ++i)
        if (point.exprs[i] != kEmpty && tops[i].frame->phase == Frame::ObjectKey) return true;
    return false;
}

// What the text of a point decides besides its lexemes.
void Machine::Search::mix_text(const std::string& text, bool by_text, Hash128& hash) const {
    if (by_text) hash.mix(without_blanks(text));
    excluded_.mix_ahead(text, hash);
}

// The ways in which the lexemes at hand may end, the shortest of each kind.
std::vector<Machine::Search::Ending> Machine::Search::endings(const Place& place) {
    constexpr size_t kMaxEndings = 64, kMaxPoints = 5'000;
    Reading reading(place, machine_.grammar().exprs());
    const bool whole_alphabet = machine_.grammar().takes_all_bytes();
    const bool by_text = reads_by_text(machine_, place.state, [&](const Frame& frame) { return is_followed(frame, place.trials); }) ||
                         std::any_of(place.trials.begin(), place.trials.end(), [](const Trial& t) { return t.by_text(); });
    const uint64_t work = 1 + reading.lexemes.size() / 8 + place.text.size() / 256 + excluded_.texts.size() / 16;
    std::unordered_set<Hash128, HashOf> known, kinds;
    std::vector<Ending> out;
    for (size_t i = 0; i < reading.points.size() && room_ > 0; ++i) {
        for (const uint8_t byte : reading.bytes_after(reading.points[i])) {
            spend(work);
            if (whole_alphabet && is_needless_escape(reading.points[i].text, byte, origin_)) continue;
            Reading::Point point = reading.after(reading.points[i], byte);
            if (excluded_.reached(point.text)) continue;
            Hash128 hash, kind;
            for (const ExprId expr : point.exprs) hash.mix(expr);
            const bool text_counts = by_text || reading.in_key(point);
            mix_text(point.text, text_counts, hash);
            if (!known.insert(hash).second) continue;
            Ending ending{point.text.substr(place.text.size()), reading.ends(point)};
            for (const bool end : ending.ends) kind.mix(end);
            mix_text(point.text, text_counts, kind);
            const auto own = ending.ends.begin() + static_cast<ptrdiff_t>(reading.tops.size());
            if (std::find(ending.ends.begin(), own, true) != own && kinds.insert(kind).second) out.push_back(std::move(ending));
            reading.points.push_back(std::move(point));
            if (out.size() > kMaxEndings || reading.points.size() > kMaxPoints || is_crowded(reading.lexemes)) return complete_ = false, out;
        }
    }
    return out;
}

void Machine::Search::follow(const Place& place, const Ending& ending) {
    spend(place.state.tops.size() + place.text.size() / 256);  // the text is copied
    if (room_ == 0) return;
    std::string text = place.text + ending.rest;
    State next = machine_.finish(place.state, ending.ends.begin(), text);
    if (next.dead()) return;
    std::vector<Trial> trials = place.trials;
    auto ends = ending.ends.begin() + static_cast<ptrdiff_t>(place.state.tops.size());
    for (Trial& trial : trials) {
        spend(ending.rest.size());
        const size_t n = trial.num_lexemes();
        trial.end(ending.rest, ends);
        ends += static_cast<ptrdiff_t>(n);
    }
    visit(std::move(next), std::move(text), std::move(trials), taste(static_cast<uint8_t>(ending.rest[0])));
}

// Takes up a state that was not met before. trials: those of the state before it.
void Machine::Search::visit(State state, std::string text, std::vector<Trial> trials, uint64_t liking) {
    follow_trials(state, text, trials);
    drop_lost(state, trials);
    if (state.dead() || room_ == 0) return;
    Place place{0, std::move(text), std::move(state), std::move(trials)};
    if (!known_.insert(identity(place)).second) return;
    place.priority = length(place) * 4 + liking;
    open_.push(std::move(place));
}

// Leaves the trials of the verified nodes that are open now; those that were have read the text.
void Machine::Search::follow_trials(const State& state, const std::string& text, std::vector<Trial>& trials) {
    std::vector<Trial> now;
    each_frame(state, [&](const Frame& frame) {
        if (frame.phase != Frame::Verify || std::any_of(now.begin(), now.end(), [&](const Trial& t) { return t.is_of(frame); })) return;
        const auto old = std::find_if(trials.begin(), trials.end(), [&](const Trial& t) { return t.is_of(frame); });
        const bool found = old != trials.end();
        now.push_back(found ? std::move(*old) : Trial(frame.start, frame.node, *machine_.grammar().node(frame.node).predicate));
        if (!found) spend(now.back().read(std::string_view(text).substr(frame.start)));
    });
    trials = std::move(now);
}

// Ways that lead on only through nodes whose predicate holds for no text that begins so.
void Machine::Search::drop_lost(State& state, const std::vector<Trial>& trials) const {
    if (std::none_of(trials.begin(), trials.end(), [](const Trial& t) { return t.is_lost(); })) return;
    std::unordered_map<const Frame*, bool> lost;
    const auto is_lost = [&](const Frame& frame) {
        if (std::any_of(trials.begin(), trials.end(), [&](const Trial& t) { return t.is_of(frame) && t.is_lost(); })) return true;
        return !frame.parents.empty() && std::all_of(frame.parents.begin(), frame.parents.end(), [&](const FramePtr& p) { return lost[p.get()]; });
    };
    std::erase_if(state.tops, [&](const Top& top) {
        ancestors_first(*top.frame, [&](const Frame& f) { return lost.count(&f) != 0; }, [&](const Frame& f) { lost[&f] = is_lost(f); });
        return lost[top.frame.get()];
    });
}

uint64_t Machine::Search::length(const Place& place) const {
    uint64_t rest = place.state.can_end ? 0 : kInfinite;
    for (const Top& top : place.state.tops) rest = std::min<uint64_t>(rest, machine_.cost(top));
    for (const Trial& trial : place.trials) rest = std::max<uint64_t>(rest, trial.bytes_needed());
    return place.text.size() + rest;
}

Hash128 Machine::Search::identity(const Place& place) const {
    Hash128 hash;
    mix_state(machine_, place.state, place.text, hash, [&](const Frame& frame) { return is_followed(frame, place.trials); });
    for (const Trial& trial : place.trials) trial.mix(hash);
    excluded_.mix_ahead(place.text, hash);
    return hash;
}

}  // namespace safegen
