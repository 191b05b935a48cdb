#include "grammars/native/state.hpp"

#include <algorithm>
#include <queue>
#include <unordered_set>

#include "grammars/native/json_value.hpp"

namespace safegen {

FramePtr::~FramePtr() {
    // Iterative: a chain of frames is as long as the nesting of the text.
    std::vector<Frame*> pending;
    for (Frame* at = frame_; at;) {
        if (at->references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            for (FramePtr& parent : at->parents)
                if (Frame* up = parent.release()) pending.push_back(up);
            delete at;
        }
        at = pending.empty() ? nullptr : pending.back();
        if (at) pending.pop_back();
    }
}

// Everything that one byte (or the start) sets off. Frames pushed in the same step at the same node meet, and so do calls
// of the same rule, which keeps ambiguous grammars polynomial. A worklist, not recursion: a right-recursive list ends in
// as many frames as it has items.
struct Machine::Step {
    const Grammar& g;
    const std::string& text;
    State out{};
    std::vector<std::pair<std::pair<NodeId, uint16_t>, FramePtr>> pushed{};
    std::vector<std::pair<NodeId, const Frame*>> unions{};  // begun in this step: a union that leads to itself adds nothing
    std::vector<std::pair<FramePtr, uint32_t>> ended{};     // frames whose lexeme or value has ended, with its start
    std::vector<std::pair<NodeId, FramePtr>> begun{};       // values to begin, with the frame that awaits them
    std::vector<FramePtr> kept{};                           // frames ended in this step
    // Moved on in this step. Parts that meet at one place of one sequence, read in several ways, go on as one: there are
    // as many ways to cut a text into n parts as there are n-subsets of its bytes.
    std::vector<FramePtr> sequences{};
    std::unordered_set<const Frame*> handled{};             // the same, once they are many
    std::unordered_map<const Frame*, std::unordered_set<const Frame*>> callers{};  // parents of frames that have many

    static constexpr size_t kFew = 16;
    bool was_handled(const Frame* frame) const {
        if (kept.size() > kFew) return handled.count(frame) != 0;
        return std::any_of(kept.begin(), kept.end(), [&](const FramePtr& known) { return known.get() == frame; });
    }

    void run() {
        for (; !ended.empty() || !begun.empty(); ++out.work) {
            if (!begun.empty()) {
                const auto [id, frame] = std::move(begun.back());
                begun.pop_back();
                start(id, frame);
                continue;
            }
            const auto [frame, start] = std::move(ended.back());
            ended.pop_back();
            if (was_handled(frame.get())) continue;
            kept.push_back(frame);
            if (kept.size() > kFew) handled.insert(frame.get());
            if (kept.size() == kFew + 1)
                for (const FramePtr& known : kept) handled.insert(known.get());
            key_start = start;
            handle(frame);
        }
    }
    void done(const FramePtr& frame, uint32_t start = 0) { ended.push_back({frame, start}); }
    void begin(NodeId id, const FramePtr& parent) { begun.push_back({id, parent}); }

    Frame* new_frame() const {
        auto* frame = new Frame;
        frame->step = static_cast<uint32_t>(text.size());
        return frame;
    }

    void add(ExprId expr, const FramePtr& frame, uint32_t start = 0) {
        if (expr == kEmpty) return;
        for (const Top& top : out.tops)
            if (top.expr == expr && top.frame.get() == frame.get() && top.start == start) return;
        out.tops.push_back({expr, frame, start});
    }

    // Starts a lexeme: what it may read, and what follows at once if it may be empty.
    void read(ExprId expr, const FramePtr& frame, uint32_t start = 0) {
        if (expr == kEmpty) return;
        if (expr != kEpsilon) add(expr, frame, start);
        if (g.exprs().nullable(expr)) done(frame);
    }

    FramePtr moved(const FramePtr& from, Frame::Phase phase) {
        auto* frame = new_frame();
        frame->phase = phase;
        frame->nesting = from->nesting;
        frame->node = from->node;
        frame->index = from->index;
        frame->count = from->count;
        frame->value = from->value;
        frame->seen = from->seen;
        frame->counts = from->counts;
        frame->items = from->items;
        frame->outer = from->outer;
        frame->sensitive = from->sensitive;
        frame->parents = from->parents;
        for (const FramePtr& parent : frame->parents) frame->inherit(*parent);
        return FramePtr(frame);
    }

    bool fits(NodeId value, const Frame& parent) const {
        return g.alive(value) && saturating_add(parent.nesting, g.nesting(value)) <= g.options().max_nesting;
    }

    void start(NodeId id, const FramePtr& parent) {
        id = g.resolve(id);
        if (!fits(id, *parent)) return;
        const Node& n = g.node(id);
        switch (n.kind) {
            case Node::Lexeme: read(n.expr, parent); return;
            case Node::Union:
                if (std::find(unions.begin(), unions.end(), std::pair{id, static_cast<const Frame*>(parent.get())}) != unions.end()) return;
                unions.push_back({id, parent.get()});
                for (NodeId kid : n.kids) begin(kid, parent);
                return;
            case Node::Sequence: {
                auto* frame = new_frame();
                frame->phase = Frame::Sequence;
                frame->node = id;
                frame->nesting = parent->nesting;
                frame->inherit(*parent);
                frame->parents.push_back(parent);
                done(FramePtr(frame));
                return;
            }
            case Node::Rule: call(id, parent); return;
            case Node::Verified: {
                auto* frame = new_frame();
                frame->phase = Frame::Verify;
                frame->node = id;
                frame->nesting = parent->nesting;
                frame->start = frame->inner = frame->outer = static_cast<uint32_t>(text.size());
                frame->inherit(*parent);
                frame->parents.push_back(parent);
                begin(n.kids[0], FramePtr(frame));
                return;
            }
            default: push(id, parent, n.kind == Node::Array); return;
        }
    }

    bool is_caller(const Frame& frame, const FramePtr& parent) {
        if (frame.parents.size() <= kFew)
            return std::any_of(frame.parents.begin(), frame.parents.end(), [&](const FramePtr& known) { return known.get() == parent.get(); });
        auto& known = callers[&frame];
        if (known.empty())
            for (const FramePtr& each : frame.parents) known.insert(each.get());
        return known.count(parent.get()) != 0;
    }
    void add_caller(Frame& frame, const FramePtr& parent) {
        if (frame.parents.size() > kFew) callers[&frame].insert(parent.get());
        frame.parents.push_back(parent);
        frame.inherit(*parent);
    }

    // All calls of a rule at one place of the text share a frame.
    void call(NodeId id, const FramePtr& parent) {
        for (auto& [key, frame] : pushed) {
            if (key != std::pair{id, parent->nesting}) continue;
            if (is_caller(*frame, parent)) return;
            if (leads_to(parent.get(), frame.get())) throw LimitExceeded("a rule calls itself before it reads anything (left recursion)");
            add_caller(*frame, parent);
            if (was_handled(frame.get())) done(parent);  // it was already found empty here
            return;
        }
        auto* frame = new_frame();
        frame->phase = Frame::Call;
        frame->node = id;
        frame->nesting = parent->nesting;
        frame->inherit(*parent);
        frame->parents.push_back(parent);
        FramePtr shared(frame);
        pushed.push_back({{id, parent->nesting}, shared});
        for (NodeId kid : g.node(id).kids) begin(kid, shared);
    }

    // Whether `to`, a call of this step, is among the ancestors of `from`. Frames of this step hold frames of this step
    // or older ones, and an older one never leads to `to`; their number in one step is what bounds the walk.
    static bool leads_to(const Frame* from, const Frame* to) {
        std::vector<const Frame*> open{from};
        std::unordered_set<const Frame*> seen;
        while (!open.empty()) {
            const Frame* at = open.back();
            open.pop_back();
            if (at == to) return true;
            if (at->step != to->step || !seen.insert(at).second) continue;
            for (const FramePtr& parent : at->parents) open.push_back(parent.get());
        }
        return false;
    }

    void push(NodeId id, const FramePtr& parent, bool array) {
        const auto nesting = static_cast<uint16_t>(parent->nesting + 1);
        for (auto& [key, frame] : pushed) {
            if (key != std::pair{id, nesting}) continue;
            if (!is_caller(*frame, parent)) add_caller(*frame, parent);
            return;
        }
        auto* frame = new_frame();
        frame->phase = array ? Frame::ArrayOpen : Frame::ObjectOpen;
        frame->node = id;
        frame->nesting = nesting;
        if (array && g.node(id).array->unique) {
            frame->sensitive = true;
            if (!g.node(id).array->open) frame->outer = static_cast<uint32_t>(text.size());
        }
        frame->inherit(*parent);
        frame->parents.push_back(parent);
        FramePtr shared(frame);
        pushed.push_back({{id, nesting}, shared});
        read(array ? g.open_array : g.open_object, shared);
    }

    void pop(const FramePtr& frame) {
        for (const FramePtr& parent : frame->parents) done(parent);
    }

    // The lexeme or value that `frame` awaited has ended.
    void handle(const FramePtr& frame) {
        switch (frame->phase) {
            case Frame::Root:
                out.can_end = true;
                if (g.margin != kEpsilon) add(g.margin, tail());
                return;
            case Frame::Tail: out.can_end = true; return;
            case Frame::Lead: begin(g.root(), frame->parents[0]); return;
            case Frame::Sequence: sequence(frame); return;
            case Frame::ArrayOpen:
                item(frame);
                if (const ArraySpec& a = *g.node(frame->node).array; a.low == 0 && (!a.counted() || counts_suffice(a, {}))) read(g.close_empty_array, moved(frame, Frame::Close));
                return;
            case Frame::ArrayItem: after_item(frame); return;
            case Frame::ArrayComma: item(frame); return;
            case Frame::ObjectOpen:
                members(frame);
                if (may_close(*frame)) read(g.close_empty_object, moved(frame, Frame::Close));
                return;
            case Frame::ObjectKey: after_key(frame); return;
            case Frame::ObjectColon: begin(frame->value, moved(frame, Frame::ObjectValue)); return;
            case Frame::ObjectValue:
                if (may_close(*frame)) read(g.close_object, moved(frame, Frame::Close));
                if (has_member(*frame)) read(g.comma, moved(frame, Frame::ObjectComma));
                return;
            case Frame::ObjectComma: members(frame); return;
            case Frame::Verify:
                if (g.node(frame->node).predicate->holds(text.substr(frame->start))) pop(frame);
                else out.failures.push_back({frame->start, frame->node});
                return;
            case Frame::Call:
            case Frame::Close: pop(frame); return;
        }
    }

    FramePtr tail() {
        auto* frame = new_frame();
        frame->phase = Frame::Tail;
        return FramePtr(frame);
    }

    void sequence(const FramePtr& frame) {
        const auto& kids = g.node(frame->node).kids;
        if (frame->index == kids.size()) return pop(frame);
        if (frame->index + 1 == kids.size()) {  // a tail call: nothing is left to do here, so the parents await it
            return tail_call(kids.back(), frame->parents);
        }
        for (const FramePtr& known : sequences)
            if (known->node == frame->node && known->index == frame->index + 1 && same_frames(known->parents, frame->parents)) return;
        FramePtr next = moved(frame, Frame::Sequence);
        ++next->index;
        sequences.push_back(next);
        begin(kids[frame->index], next);
    }
    static bool same_frames(const std::vector<FramePtr>& x, const std::vector<FramePtr>& y) {
        return x.size() == y.size() && std::equal(x.begin(), x.end(), y.begin(), [](const FramePtr& a, const FramePtr& b) { return a.get() == b.get(); });
    }

    // A finished call only passes on; its parents are final once its step is over. So lists that recurse on the right
    // cost the same at every item.
    void tail_call(NodeId id, const std::vector<FramePtr>& parents) {
        std::vector<const FramePtr*> open;
        std::unordered_set<const Frame*> passed;  // calls of calls may be reached on many ways
        const auto add_all = [&](const std::vector<FramePtr>& frames) {
            for (const FramePtr& frame : frames) open.push_back(&frame);
        };
        add_all(parents);
        while (!open.empty()) {
            const FramePtr& at = *open.back();
            open.pop_back();
            ++out.work;
            if (at->phase != Frame::Call || at->step == text.size()) begin(id, at);
            else if (passed.insert(at.get()).second) add_all(at->parents);
        }
    }

    // --- arrays ---
    // Calls visit(value, prepare) for each way to fill the next position; prepare completes the frame that awaits it.
    template <class Visit>
    void each_choice(const Frame& f, Visit&& visit) const {
        const ArraySpec& a = *g.node(f.node).array;
        if (f.count >= a.high) return;
        if (a.counted()) {
            return each_counted(f, a, visit);
        }
        if (!a.values.empty()) {
            for (uint32_t i = 0; i < a.values.size(); ++i)
                if (!was_seen(f, i) && fits(a.values[i], f)) visit(a.values[i], [&](Frame& next) { mark(next, i, a.values.size()); });
            return;
        }
        const NodeId value = f.count < a.prefix.size() ? a.prefix[f.count] : a.rest;
        if (value != kNoNode && fits(value, f)) visit(value, [](Frame&) {});
    }
    template <class Visit>
    void each_counted(const Frame& f, const ArraySpec& a, Visit&& visit) const {
        UsedValues used(a.group_sizes.size(), 0);
        for (uint32_t i = 0; i < a.num_listed; ++i)
            if (was_seen(f, i)) ++used[a.group_of[i]];
        std::vector<std::pair<std::pair<uint32_t, uint32_t>, bool>> known;  // (counts, group) -> can be completed
        const auto can_follow = [&](const ItemChoice& choice, const ContainsCounts& counts) {
            const uint32_t group = choice.listed == kUnlisted ? kUnlisted : a.group_of[choice.listed];
            for (const auto& [kind, live] : known)
                if (kind == std::pair{choice.counts_for, group}) return live;
            UsedValues after = used;
            if (group != kUnlisted) ++after[group];
            const bool live = g.completable(a, f.count + 1, counts, after);
            known.push_back({{choice.counts_for, group}, live});
            return live;
        };
        for (const ItemChoice& choice : a.choices(f.count)) {
            if (choice.value == kNoNode || !fits(choice.value, f)) continue;
            if (choice.listed != kUnlisted && was_seen(f, choice.listed)) continue;
            const ContainsCounts counts = a.counted_with(f.counts, choice.counts_for);
            if (!can_follow(choice, counts)) continue;
            visit(choice.value, [&](Frame& next) {
                next.counts = counts;
                if (choice.listed != kUnlisted) mark(next, choice.listed, a.num_listed);
            });
        }
    }
    bool has_item(const Frame& f) const {
        bool any = false;
        each_choice(f, [&](NodeId, auto&&) { any = true; });
        return any;
    }
    void item(const FramePtr& frame) {
        const ArraySpec& a = *g.node(frame->node).array;
        each_choice(*frame, [&](NodeId value, auto&& prepare) {
            FramePtr next = moved(frame, Frame::ArrayItem);
            ++next->count;
            next->start = static_cast<uint32_t>(text.size());
            if (a.unique && !a.open) next->inner = next->start;
            prepare(*next);
            begin(value, next);
        });
    }
    void after_item(const FramePtr& ended) {
        const ArraySpec& a = *g.node(ended->node).array;
        FramePtr frame = ended;
        if (a.unique) {
            std::string form = canonical_json(std::string_view(text).substr(ended->start));
            auto items = std::make_shared<std::vector<std::string>>(ended->items ? *ended->items : std::vector<std::string>{});
            const auto place = std::lower_bound(items->begin(), items->end(), form);
            if (place != items->end() && *place == form) return;
            items->insert(place, std::move(form));
            frame = moved(ended, Frame::ArrayItem);
            frame->items = std::move(items);
        }
        const bool enough = frame->count >= a.low && (!a.counted() || counts_suffice(a, frame->counts));
        if (enough) read(g.close_array, moved(frame, Frame::Close));
        if (has_item(*frame)) read(g.comma, moved(frame, Frame::ArrayComma));
    }
    static bool counts_suffice(const ArraySpec& a, const ContainsCounts& counts) {
        for (size_t i = 0; i < a.contains.size(); ++i)
            if (counts[i] < a.contains[i].first || (a.contains[i].second != kInfinite && counts[i] > a.contains[i].second)) return false;
        return true;
    }
    static void mark(Frame& f, uint32_t index, size_t size) {
        auto now = std::make_shared<Seen>(f.seen ? *f.seen : Seen{});
        now->declared.resize(size / 64 + 1, 0);
        now->declared[index / 64] |= uint64_t{1} << (index % 64);
        f.seen = std::move(now);
    }

    // --- objects ---
    uint32_t required_left(const Frame& f) const {
        const ObjectSpec& o = *g.node(f.node).object;
        if (!g.options().any_order) return o.required_from[f.index];
        uint32_t left = 0;
        for (uint32_t i = 0; i < o.properties.size(); ++i)
            if (o.properties[i].required && !was_seen(f, i)) ++left;
        return left;
    }
    bool may_close(const Frame& f) const {
        const ObjectSpec& o = *g.node(f.node).object;
        return f.count >= o.low && required_left(f) == 0 && unmet(f, o) == 0;
    }
    // Conditions that no member meets yet; counts[0] holds those that are met.
    static uint32_t unmet(const Frame& f, const ObjectSpec& o) { return o.conditions & ~static_cast<uint32_t>(f.counts[0]); }
    // How many extra members it takes to meet these conditions. left: keys of each language that are unused.
    uint32_t members_for(uint32_t conditions, const Frame& f, const ObjectSpec& o, const std::vector<uint32_t>& left) const {
        return cover(o, conditions, left, [&](const ExtraKeys& extra) { return g.alive(extra.value) && fits(extra.value, f) ? 1u : kInfinite; }, saturating_add);
    }
    uint32_t members_for_unmet(const Frame& f, const ObjectSpec& o) const {
        return unmet(f, o) ? members_for(unmet(f, o), f, o, Machine(g).keys_left(f)) : 0;
    }
    // Whether an extra member of this kind may follow.
    bool takes(const ExtraKeys& extra, const Frame& f, const ObjectSpec& o) const {
        if (!g.alive(extra.value) || !fits(extra.value, f)) return false;
        if (o.high == kInfinite && !o.scarce) return true;
        uint32_t others = required_left(f);
        if (o.conditions) {
            std::vector<uint32_t> left = Machine(g).keys_left(f);
            uint32_t& mine = left[extra.language];
            if (mine == 0) return false;
            if (mine != kInfinite) --mine;
            others = saturating_add(others, members_for(unmet(f, o) & ~extra.meets, f, o, left));
        }
        return others != kInfinite && (o.high == kInfinite || saturating_add(f.count + 1, others) <= o.high);
    }

    // Which declared names may come next, and whether an extra key may.
    struct Choice {
        OrderFilter declared;
        bool any_declared = false;
        bool extra = false;
    };
    Choice choose(const Frame& f) const {
        const ObjectSpec& o = *g.node(f.node).object;
        Choice out;
        if (f.count >= o.high) return out;
        const uint32_t required = required_left(f);
        const uint32_t needed = saturating_add(required, o.high == kInfinite ? 0 : members_for_unmet(f, o));
        const bool optional_fits = saturating_add(f.count + 1, needed) <= o.high;
        const auto n = static_cast<uint32_t>(o.properties.size());
        auto usable = [&](uint32_t i) {
            return g.alive(o.properties[i].value) && fits(o.properties[i].value, f) && (o.properties[i].required || optional_fits);
        };
        const bool extras_live = o.extra_keys != kEmpty && extra_left(f, o);
        if (g.options().any_order) {
            out.declared.bits.assign(n / 64 + 1, 0);
            for (uint32_t i = 0; i < n; ++i)
                if (!was_seen(f, i) && usable(i)) {
                    out.declared.bits[i / 64] |= uint64_t{1} << (i % 64);
                    out.any_declared = true;
                }
            out.extra = extras_live;
            return out;
        }
        // Schema order: up to the next required name, as far as the rest can still reach the lower count.
        const uint32_t extras = extra_supply(f, o);
        out.declared.low = n;
        out.declared.high = 0;
        bool gaps = false;
        for (uint32_t i = f.index; i < n; ++i) {
            const bool enough = saturating_add(saturating_add(f.count + 1, o.possible_from[i + 1]), extras) >= o.low;
            if (usable(i) && enough) {
                if (!out.any_declared) out.declared.low = i;
                out.declared.high = i;
                out.any_declared = true;
            } else if (g.alive(o.properties[i].value)) {
                gaps = true;
            }
            if (o.properties[i].required) break;
        }
        if (gaps && out.any_declared) {
            out.declared.bits.assign(n / 64 + 1, 0);
            for (uint32_t i = out.declared.low; i <= out.declared.high; ++i)
                if (usable(i) && saturating_add(saturating_add(f.count + 1, o.possible_from[i + 1]), extras) >= o.low)
                    out.declared.bits[i / 64] |= uint64_t{1} << (i % 64);
            out.declared.low = 0, out.declared.high = kInfinite;
        }
        out.extra = extras_live && required == 0 && saturating_add(f.count, extras) >= o.low;
        return out;
    }
    uint32_t extra_supply(const Frame& f, const ObjectSpec& o) const {
        const auto used = static_cast<uint32_t>(f.seen ? f.seen->extras.size() : 0);
        if (o.extra_keys == kEmpty) return 0;
        return o.extra_count >= std::max(o.low, 1u) ? kInfinite / 2 : o.extra_count - std::min(used, o.extra_count);
    }
    bool extra_left(const Frame& f, const ObjectSpec& o) const {
        return std::any_of(o.extras.begin(), o.extras.end(), [&](const ExtraKeys& extra) { return takes(extra, f, o); });
    }
    // A comma may only be read when a key can follow: with finitely many extra keys that asks the key language itself.
    bool has_member(const Frame& f) const { return key_expr(f) != kEmpty; }

    // Whether every beginning of an extra key goes on without end, so that no keys read before can spoil it. Found out
    // when an object first holds one; keys of large automata count as used up, which costs an automaton for each set.
    bool extras_last(const ObjectSpec& o) const {
        constexpr size_t kMaxStates = 256;
        if (o.extra_open) return true;
        KeyMemo::Known known = o.memo->extras_last.load(std::memory_order_relaxed);
        if (known == KeyMemo::Unknown) {  // two threads may find out the same
            known = g.exprs().never_used_up(o.extra_keys, kMaxStates) ? KeyMemo::Yes : KeyMemo::No;
            o.memo->extras_last.store(known, std::memory_order_relaxed);
        }
        return known == KeyMemo::Yes;
    }

    // Remembered where it depends on the next property alone: the common case, and the costly one to build.
    ExprId key_expr(const Frame& f) const {
        const ObjectSpec& o = *g.node(f.node).object;
        const bool simple = !o.scarce && (!f.seen || (!g.options().any_order && extras_last(o))) && o.low == 0 && o.high == kInfinite && saturating_add(f.nesting, o.deepest) <= g.options().max_nesting;
        if (!simple) return key_expr(f, choose(f));
        std::lock_guard<std::mutex> lock(o.memo->mutex);
        auto [it, fresh] = o.memo->keys.try_emplace(f.index, kEmpty);
        if (fresh) it->second = key_expr(f, choose(f));
        return it->second;
    }
    ExprId key_expr(const Frame& f, const Choice& choice) const {
        const ObjectSpec& o = *g.node(f.node).object;
        ExprId extra = kEmpty;
        if (choice.extra) {
            std::vector<ExprId> parts;
            bool all_fit = true;
            for (const ExtraKeys& each : o.extras)
                if (g.alive(each.value)) {
                    if (takes(each, f, o)) parts.push_back(each.keys);
                    else all_fit = false;
                }
            extra = all_fit ? o.extra_keys : g.exprs().intersect({o.extra_keys, g.exprs().alternate(parts)});
            // Where keys are never used up, a repeated one is refused at its closing quote (after_key).
            if (f.seen && !f.seen->extras.empty() && !(all_fit && extras_last(o)))
                extra = g.exprs().intersect({extra, g.exprs().complement(g.exprs().strings(f.seen->extras))});
            if (!g.exprs().live(extra)) extra = kEmpty;
        }
        if (!choice.any_declared && extra == kEmpty) return kEmpty;
        return g.key(o, choice.any_declared ? &choice.declared : nullptr, extra);
    }
    void members(const FramePtr& frame) {
        const ExprId keys = key_expr(*frame);
        read(keys, moved(frame, Frame::ObjectKey), static_cast<uint32_t>(text.size()));
    }

    uint32_t key_start = 0;  // of the key lexeme that just ended

    void after_key(const FramePtr& frame) {
        const ObjectSpec& o = *g.node(frame->node).object;
        const std::string key = decode_json_string(std::string_view(text).substr(key_start));
        FramePtr next = moved(frame, Frame::ObjectColon);
        ++next->count;
        const auto declared = o.by_name.find(key);
        const bool any_order = g.options().any_order;
        if (declared != o.by_name.end()) {
            next->index = declared->second + 1;
            next->value = o.properties[declared->second].value;
            if (any_order) mark(*next, declared->second, o.properties.size());
        } else {
            if (frame->seen && std::binary_search(frame->seen->extras.begin(), frame->seen->extras.end(), key)) return;
            next->index = static_cast<uint32_t>(o.properties.size());
            auto now = std::make_shared<Seen>(frame->seen ? *frame->seen : Seen{});
            now->extras.insert(std::lower_bound(now->extras.begin(), now->extras.end(), key), key);
            next->seen = std::move(now);
            for (const ExtraKeys& extra : o.extras) {
                if (!takes(extra, *frame, o) || !g.exprs().matches(extra.keys, key)) continue;
                FramePtr with_value = moved(next, Frame::ObjectColon);
                with_value->value = extra.value;
                with_value->counts[0] |= static_cast<uint16_t>(extra.meets);
                read(g.colon, with_value);
                if (!o.conditions) return;
            }
            return;
        }
        read(g.colon, next);
    }
};

State Machine::start() const {
    static const std::string kNothing;
    Step step{grammar_, kNothing};
    FramePtr root(new Frame);
    if (grammar_.margin == kEpsilon) {
        step.begin(grammar_.root(), root);
    } else {
        auto* lead = new Frame;  // leading blanks
        lead->phase = Frame::Lead;
        lead->parents.push_back(root);
        FramePtr shared(lead);
        step.read(grammar_.margin, shared);
    }
    step.run();
    return std::move(step.out);
}

State Machine::step(const State& state, uint8_t byte, const std::string& text) const {
    Step step{grammar_, text};
    for (const Top& top : state.tops) {
        const ExprId next = grammar_.exprs().next(top.expr, byte);
        if (next == kEmpty) continue;
        // A lexeme that has ended for good, as a number at its last digit, leads on only by its end: where that is judged
        // it may lead nowhere.
        const bool judged = top.frame->outer != kInfinite;
        if (next != kEpsilon && !(judged && grammar_.exprs().expansion(next)->first.empty())) step.add(next, top.frame, top.start);
        if (grammar_.exprs().nullable(next)) step.done(top.frame, top.start);
    }
    step.run();
    return std::move(step.out);
}

State Machine::finish(const Top& top, const std::string& text) const {
    Step step{grammar_, text};
    step.done(top.frame, top.start);
    step.run();
    return std::move(step.out);
}

State Machine::finish(const State& state, std::vector<bool>::const_iterator ends, const std::string& text) const {
    Step step{grammar_, text};
    for (const Top& top : state.tops)
        if (*ends++) step.done(top.frame, top.start);
    step.run();
    return std::move(step.out);
}

bool Machine::repeats_key(const Top& top, std::string_view literal) {
    const auto& seen = top.frame->seen->extras;
    return std::binary_search(seen.begin(), seen.end(), decode_json_string(literal));
}

// Counts that no bound will ever look at again are left out, so that the items of a long array share their masks.
Hash128 Machine::frame_hash(const Frame& frame) const {
    ancestors_first(
        frame, [](const Frame& f) { return f.hash_a.load(std::memory_order_acquire) != 0; },
        [this](const Frame& f) { hash_frame(f); });
    Hash128 h;
    h.a = frame.hash_a.load(std::memory_order_acquire);
    h.b = frame.hash_b.load(std::memory_order_relaxed);
    return h;
}

void Machine::hash_frame(const Frame& f) const {
    Hash128 h;
    uint32_t count = f.count;
    if (f.node != kNoNode) {
        const Node& n = grammar_.node(f.node);
        if (n.array && !n.array->counted() && n.array->high == kInfinite)
            count = std::min(count, std::max(n.array->low, static_cast<uint32_t>(n.array->prefix.size())));
        if (n.object && n.object->low == 0 && n.object->high == kInfinite) count = 0;
    }
    h.mix((static_cast<uint64_t>(f.phase) << 48) | (static_cast<uint64_t>(f.nesting) << 32) | f.node);
    h.mix((static_cast<uint64_t>(f.index) << 32) | count);
    h.mix(f.value);
    // Lengths come before what they count, or two frames could spell the same row of numbers.
    for (uint16_t c : f.counts) h.mix(c);
    h.mix(f.seen ? 1 + f.seen->extras.size() : 0);
    if (f.seen) {
        for (const std::string& key : f.seen->extras) h.mix(key);
        h.mix(f.seen->declared.size());
        for (uint64_t word : f.seen->declared) h.mix(word);
    }
    h.mix(f.items ? 1 + f.items->size() : 0);
    if (f.items)
        for (const std::string& form : *f.items) h.mix(form);
    Hash128 parents;
    parents.a = parents.b = 0;
    for (const FramePtr& parent : f.parents) {  // a set: order does not matter
        parents.a += parent->hash_a.load(std::memory_order_acquire) * 0xD6E8FEB86659FD93ull;
        parents.b += parent->hash_b.load(std::memory_order_relaxed) * 0xA0761D6478BD642Full;
    }
    h.mix(f.parents.size());
    h.mix(parents.a);
    h.mix(parents.b);
    if (h.a == 0) h.a = 1;
    f.hash_b.store(h.b, std::memory_order_relaxed);
    f.hash_a.store(h.a, std::memory_order_release);
}

std::optional<Hash128> Machine::mask_key(const State& state, const std::string& text) const {
    Hash128 h;
    h.mix(state.tops.size() * 2 + (state.can_end ? 1 : 0));
    for (const Top& top : state.tops) {
        if (top.frame->sensitive || top.frame->outer != kInfinite) return std::nullopt;  // judged by its text as a whole
        const Hash128 frame = frame_hash(*top.frame);
        h.mix(top.expr);
        h.mix(frame.a);
        h.mix(frame.b);
        // The key being read decides what follows it.
        if (top.frame->phase == Frame::ObjectKey) h.mix(std::string_view(text).substr(top.start));
    }
    return h;
}

NodeId State::node_from(uint32_t start) const {
    std::vector<const Frame*> open;
    std::unordered_set<const Frame*> visited;
    for (const Top& top : tops) open.push_back(top.frame.get());
    while (!open.empty()) {
        const Frame* at = open.back();
        open.pop_back();
        if (!visited.insert(at).second) continue;
        if ((at->phase == Frame::ArrayItem || at->phase == Frame::Verify) && at->start == start && at->inner == start) return at->node;
        for (const FramePtr& parent : at->parents) open.push_back(parent.get());
    }
    return kNoNode;
}

ByteSet Machine::first_of_all(const State& state) const {
    ByteSet out;
    for (const Top& top : state.tops) out = out | grammar_.exprs().expansion(top.expr)->first;
    return out;
}

ByteSet Machine::first(const State& state, const std::string& text) const {
    ByteSet out;
    for (const Top& top : state.tops) {
        const Expansion* x = grammar_.exprs().expansion(top.expr);
        ByteSet set = x->first;
        if (decides_by_key(top) && text.size() > top.start && set.has('"') && x->next('"') == kEpsilon &&
            repeats_key(top, text.substr(top.start) + '"'))
            set.remove('"');
        out = out | set;
    }
    return out;
}

ByteSet Machine::followers(const State& state, std::string& text) const {
    ByteSet out = first(state, text);
    if (!state.sensitive()) return out;
    ByteSet kept;
    out.each([&](uint8_t byte) {
        text.push_back(static_cast<char>(byte));
        const State next = step(state, byte, text);
        text.pop_back();
        if (!next.dead() || !next.failures.empty()) kept.add(byte);
    });
    return kept;
}

}  // namespace safegen
