#include "grammars/native/frontier.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

namespace safegen {

namespace {

constexpr size_t kMaxTexts = 8, kMaxNames = 20, kMaxTextBytes = 80, kMaxNodes = 64, kMaxRules = 32;

bool is_container(Frame::Phase phase) {
    switch (phase) {
        case Frame::ArrayOpen: case Frame::ArrayComma: case Frame::ObjectOpen: case Frame::ObjectKey:
        case Frame::ObjectColon: case Frame::ObjectComma: case Frame::Close: return true;
        default: return false;
    }
}
bool holds_a_member(Frame::Phase phase) { return phase == Frame::ArrayItem || phase == Frame::ObjectValue; }

const char* role_of(Frame::Phase phase) {
    switch (phase) {
        case Frame::ArrayOpen: case Frame::ObjectOpen: return "open";
        case Frame::ArrayComma: case Frame::ObjectComma: return "comma";
        case Frame::ObjectKey: return "key";
        case Frame::ObjectColon: return "colon";
        case Frame::Close: return "close";
        case Frame::Lead: case Frame::Tail: return "blank";
        default: return "value";
    }
}

class Survey {
public:
    explicit Survey(const Grammar& grammar) : grammar_(grammar), machine_(grammar) {}

    Frontier run(const std::string& text) {
        Frontier out;
        State state = machine_.start();
        note_starts(state, 0);
        for (; out.bytes_read < text.size(); ++out.bytes_read) {
            read_.push_back(text[out.bytes_read]);
            State next = machine_.step(state, static_cast<uint8_t>(read_.back()), read_);
            if (next.dead()) {
                for (const auto& [start, node] : next.failures) out.failures.push_back({start, grammar_.node(node).pointer});
                read_.pop_back();
                break;
            }
            state = std::move(next);
            note_starts(state, static_cast<uint32_t>(read_.size()));
        }
        out.can_end = state.can_end;
        for (const Top& top : state.tops) out.waiting.push_back(waiting(top));
        return out;
    }

private:
    // Frames do not say where their value began, as decoding has no use for it. It is where a frame was first seen as
    // that of a top; for the later frames of an array or object it is remembered by what stays the same.
    using ContainerKey = std::tuple<const Frame*, uint16_t, NodeId>;
    static ContainerKey container_key(const Frame& f) { return {f.parents.empty() ? nullptr : f.parents[0].get(), f.nesting, f.node}; }

    struct Begun {
        uint32_t step = kInfinite, start = kInfinite;
        std::vector<ExprId> exprs;  // the lexemes it could begin with
    };

    void note_starts(const State& state, uint32_t at) {
        for (const Top& top : state.tops) {
            const Frame& f = *top.frame;
            if (f.phase == Frame::ArrayOpen || f.phase == Frame::ObjectOpen) containers_[container_key(f)] = f.step;
            else if (!is_container(f.phase)) {
                Begun& begun = values_[&f];
                if (begun.step != f.step) begun = {f.step, at, {}};  // new, or another frame at the same address
                if (begun.start == at) begun.exprs.push_back(top.expr);
            }
        }
    }

    // The nodes that a frame awaits. A last part of a sequence is awaited by what awaits the sequence.
    void awaited(const Frame& f, std::vector<NodeId>& nodes) const {
        switch (f.phase) {
            case Frame::Root: case Frame::Lead: tails(grammar_.root(), nodes); return;
            case Frame::ObjectValue: tails(f.value, nodes); return;
            case Frame::ArrayItem: item(f, nodes); return;
            case Frame::Sequence:
                if (f.index > 0) tails(grammar_.node(f.node).kids[f.index - 1], nodes);
                return;
            case Frame::Call: tails(f.node, nodes); return;
            case Frame::Verify:
                for (const FramePtr& parent : f.parents) awaited(*parent, nodes);
                return;
            default: return;
        }
    }
    void item(const Frame& f, std::vector<NodeId>& nodes) const {
        const ArraySpec& a = *grammar_.node(f.node).array;
        if (f.count == 0) return;
        if (a.counted())
            for (const ItemChoice& choice : a.choices(f.count - 1)) tails(choice.value, nodes);
        else if (!a.values.empty())
            for (NodeId value : a.values) tails(value, nodes);
        else tails(f.count - 1 < a.prefix.size() ? a.prefix[f.count - 1] : a.rest, nodes);
    }
    void tails(NodeId id, std::vector<NodeId>& nodes) const {
        std::vector<NodeId> open{id};
        while (!open.empty() && nodes.size() < kMaxNodes) {
            const NodeId at = open.back();
            open.pop_back();
            if (at == kNoNode || std::find(nodes.begin(), nodes.end(), at) != nodes.end()) continue;
            nodes.push_back(at);
            const Node& n = grammar_.node(at);
            if (n.kids.empty()) continue;
            if (n.kind == Node::Sequence) open.push_back(n.kids.back());
            else open.insert(open.end(), n.kids.rbegin(), n.kids.rend());
        }
    }

    std::vector<OpenValue> open_values(const Frame& frame) const {
        std::vector<OpenValue> out;
        std::vector<const Frame*> level{&frame};
        if (!is_container(frame.phase)) {
            OpenValue value;
            awaited(frame, value.nodes);
            if (const auto known = values_.find(&frame); known != values_.end()) {
                const Begun& begun = known->second;
                value.start = begun.start;
                std::erase_if(value.nodes, [&](NodeId id) {
                    const Node& n = grammar_.node(id);
                    return n.kind == Node::Lexeme && std::find(begun.exprs.begin(), begun.exprs.end(), n.expr) == begun.exprs.end();
                });
            }
            out.push_back(std::move(value));
            level = members({&frame});
        }
        while (!level.empty()) {
            OpenValue value;
            std::vector<const Frame*> parents;
            for (const Frame* f : level) {
                if (const auto known = containers_.find(container_key(*f)); known != containers_.end()) value.start = known->second;
                for (const FramePtr& parent : f->parents) {
                    awaited(*parent, value.nodes);
                    if (parents.size() < kMaxNodes) parents.push_back(parent.get());
                }
            }
            out.push_back(std::move(value));
            level = members(std::move(parents));
        }
        return out;
    }
    // The frames of arrays and objects next above, those given included.
    static std::vector<const Frame*> members(std::vector<const Frame*> open) {
        std::vector<const Frame*> out;
        std::unordered_set<const Frame*> seen;
        while (!open.empty() && out.size() < kMaxNodes) {
            const Frame* at = open.back();
            open.pop_back();
            if (!seen.insert(at).second) continue;
            if (holds_a_member(at->phase)) out.push_back(at);
            else
                for (const FramePtr& parent : at->parents) open.push_back(parent.get());
        }
        return out;
    }

    static std::vector<NodeId> rules(const Frame& frame) {
        std::vector<NodeId> out;
        std::vector<const Frame*> open{&frame};
        std::unordered_set<const Frame*> seen;
        for (size_t i = 0; i < open.size() && out.size() < kMaxRules; ++i) {
            const Frame* at = open[i];
            if (!seen.insert(at).second) continue;
            if (at->phase == Frame::Call && std::find(out.begin(), out.end(), at->node) == out.end()) out.push_back(at->node);
            for (const FramePtr& parent : at->parents) open.push_back(parent.get());
        }
        return out;
    }

    Waiting waiting(const Top& top) {
        Waiting out;
        out.role = role_of(top.frame->phase);
        out.open = open_values(*top.frame);
        out.rules = rules(*top.frame);
        State alone;
        alone.tops.push_back(top);
        machine_.followers(alone, read_).each([&](uint8_t byte) { out.first.push_back(static_cast<char>(byte)); });
        if (top.frame->phase == Frame::ObjectKey) names(top, out);
        else texts(top.expr, out);
        return out;
    }
    void names(const Top& top, Waiting& out) {
        const std::string begun = read_.substr(std::min<size_t>(top.start, read_.size()));
        Exprs& x = grammar_.exprs();
        for (const Property& property : grammar_.node(top.frame->node).object->properties) {
            const std::string spelled = '"' + json_spelling(property.name) + '"';
            if (out.texts.size() == kMaxNames || spelled.compare(0, begun.size(), begun) != 0) continue;
            if (x.matches(top.expr, std::string_view(spelled).substr(begun.size()))) out.texts.push_back(spelled);
        }
        const auto found = static_cast<uint32_t>(out.texts.size());
        out.all = found < kMaxNames && x.count_up_to(top.expr, found + 1) == found;
    }
    void texts(ExprId expr, Waiting& out) const {
        Exprs& x = grammar_.exprs();
        if (x.count_up_to(expr, kMaxTexts + 1) > kMaxTexts) return;
        out.all = true;
        std::vector<std::pair<ExprId, std::string>> open{{expr, ""}};
        while (!open.empty()) {
            auto [at, text] = std::move(open.back());
            open.pop_back();
            if (x.nullable(at) && !text.empty()) out.texts.push_back(text);
            if (text.size() == kMaxTextBytes) {
                out.all = false;
                continue;
            }
            const Expansion* next = x.expansion(at);
            next->first.each([&](uint8_t byte) { open.push_back({next->next(byte), text + static_cast<char>(byte)}); });
        }
        std::sort(out.texts.begin(), out.texts.end());
    }

    const Grammar& grammar_;
    Machine machine_;
    std::string read_;
    std::unordered_map<const Frame*, Begun> values_;
    std::map<ContainerKey, uint32_t> containers_;
};

}  // namespace

Frontier frontier(const Grammar& grammar, const std::string& text) { return Survey(grammar).run(text); }

}  // namespace safegen
