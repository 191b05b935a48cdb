#include "grammars/native/restrict.hpp"

#include <algorithm>
#include <set>
#include <stdexcept>

namespace safegen {
namespace {

constexpr uint32_t kMaxIndex = 1024;

std::string name_step(const std::string& name) {
    const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
        return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c & 0x80);
    });
    if (plain) return "." + name;
    std::string out = "['";
    for (char c : name) {
        if (c == '\'' || c == '\\') out += '\\';
        out += c;
    }
    return out + "']";
}

}  // namespace

Restriction::Restriction(Exprs& exprs, std::vector<Node>& nodes, ExprId language, std::vector<ScopePath> paths, bool json)
    : x_(exprs), nodes_(nodes), language_(language), paths_(std::move(paths)), json_(json) {
    for (const ScopePath& path : paths_) everywhere_ = everywhere_ && path.leaves_out;
    for (const ScopePath& path : paths_)
        for (const PathStep& step : path.steps)
            if (step.kind == PathStep::Index && step.index > kMaxIndex) throw std::invalid_argument("an index of a path is above 1024");
}

NodeId Restriction::apply(NodeId root) {
    Places places;
    for (uint32_t i = 0; i < paths_.size(); ++i) places.push_back({i, 0});
    const NodeId out = copy_of(root, closed(std::move(places)), "$");
    while (!open_.empty()) {
        const Task task = std::move(open_.back());
        open_.pop_back();
        run(task);
    }
    return out;
}

// With the places that are reached without a step.
Restriction::Places Restriction::closed(Places places) const {
    for (size_t i = 0; i < places.size(); ++i) {
        const PathStep* step = next_step(places[i]);
        if (step && step->kind == PathStep::Below) places.push_back({places[i].first, places[i].second + 1});
    }
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
    return places;
}

// name or index: of the child; an index is null where any may stand.
Restriction::Places Restriction::child(const Places& places, const std::string* name, const uint32_t* index) const {
    Places out;
    for (const auto& place : places) {
        const PathStep* step = next_step(place);
        if (!step) continue;
        const bool taken = step->kind == PathStep::Any || (step->kind == PathStep::Name && name && *name == step->name) ||
                           (step->kind == PathStep::Index && index && *index == step->index);
        if (step->kind == PathStep::Below) out.push_back(place);
        else if (taken) out.push_back({place.first, place.second + 1});
    }
    return closed(std::move(out));
}

const PathStep* Restriction::next_step(const std::pair<uint32_t, uint32_t>& place) const {
    const auto& steps = paths_[place.first].steps;
    return place.second < steps.size() ? &steps[place.second] : nullptr;
}

bool Restriction::ends(const Places& places, bool of_keys, bool leaves_out) const {
    return std::any_of(places.begin(), places.end(), [&](const auto& place) {
        const ScopePath& path = paths_[place.first];
        return path.of_keys == of_keys && path.leaves_out == leaves_out && place.second == path.steps.size();
    });
}

bool Restriction::holds(const Places& places) const {
    return (everywhere_ || ends(places, false, false)) && !ends(places, false, true);
}

// A key belongs to its object; paths that name keys lead to its member.
bool Restriction::holds_for_key(const Places& object, const Places& member) const {
    return (everywhere_ || ends(object, false, false) || ends(member, true, false)) && !ends(object, false, true) && !ends(member, true, true);
}

uint32_t Restriction::longest_index(const Places& places) const {
    uint32_t count = 0;
    for (const auto& place : places)
        if (const PathStep* step = next_step(place); step && step->kind == PathStep::Index) count = std::max(count, step->index + 1);
    return count;
}

NodeId Restriction::copy_of(NodeId id, const Places& places, const std::string& path) {
    if (id == kNoNode || (!everywhere_ && places.empty())) return id;  // no path leads further down
    const auto [known, fresh] = copies_.try_emplace({id, places}, kNoNode);
    if (!fresh) return known->second;
    const auto copy = static_cast<NodeId>(nodes_.size());
    known->second = copy;
    nodes_.push_back(Node{});
    open_.push_back({id, copy, places, path});
    return copy;
}

void Restriction::run(const Task& task) {
    Node n = nodes_[task.from];
    switch (n.kind) {
        case Node::Undefined: break;
        case Node::Lexeme: {
            if (!holds(task.places) || n.expr == kEmpty) break;
            n.expr = within(n.expr);
            if (n.expr == kEmpty) emptied_.push_back(task.path);
            break;
        }
        case Node::Array:
            n.array = std::make_shared<ArraySpec>(*n.array);
            array(*n.array, task);
            break;
        case Node::Object:
            n.object = std::make_shared<ObjectSpec>(*n.object);
            object(*n.object, task);
            break;
        default:
            for (NodeId& kid : n.kids) kid = copy_of(kid, task.places, task.path);
    }
    nodes_[task.to] = std::move(n);
}

void Restriction::array(ArraySpec& a, const Task& task) {
    const Places rest = child(task.places, nullptr, nullptr);
    const auto item = [&](NodeId& value, const uint32_t* index) {
        const std::string step = index ? "[" + std::to_string(*index) + "]" : "[*]";
        value = copy_of(value, index ? child(task.places, nullptr, index) : rest, task.path + step);
    };
    const uint32_t named = longest_index(task.places);
    if (a.counted())
        while (a.prefix_choices.size() < named) a.prefix_choices.push_back(a.rest_choices);
    else if (a.values.empty() && a.rest != kNoNode)
        while (a.prefix.size() < named) a.prefix.push_back(a.rest);
    for (uint32_t i = 0; i < a.prefix.size(); ++i) item(a.prefix[i], &i);
    item(a.rest, nullptr);
    for (uint32_t i = 0; i < a.prefix_choices.size(); ++i)
        for (ItemChoice& choice : a.prefix_choices[i]) item(choice.value, &i);
    for (ItemChoice& choice : a.rest_choices) item(choice.value, nullptr);
    for (NodeId& value : a.values) item(value, nullptr);
}

void Restriction::object(ObjectSpec& o, const Task& task) {
    std::set<std::string> named;  // by steps of paths that begin here
    for (const auto& place : task.places)
        if (const PathStep* step = next_step(place); step && step->kind == PathStep::Name) named.insert(step->name);
    for (Property& p : o.properties) {
        if (p.value == kNoNode) continue;
        const Places places = child(task.places, &p.name, nullptr);
        const std::string path = task.path + name_step(p.name);
        if (holds_for_key(task.places, places) && !x_.matches(language_, p.name)) refused_names_.push_back(path);
        p.value = copy_of(p.value, places, path);
    }
    std::vector<ExtraKeys> extras;
    const auto add = [&](const ExtraKeys& extra, ExprId keys, const std::string* name) {
        const Places places = child(task.places, name, nullptr);
        if (holds_for_key(task.places, places)) keys = x_.live(keys) ? x_.intersect({keys, language_}) : kEmpty;
        if (!x_.live(keys)) return;
        extras.push_back({keys, copy_of(extra.value, places, task.path + (name ? name_step(*name) : ".*")), extra.meets});
    };
    for (const ExtraKeys& extra : o.extras) {
        ExprId others = extra.keys;
        for (const std::string& name : named) {
            if (!x_.matches(extra.keys, name)) continue;
            const ExprId one = x_.strings({name});
            add(extra, one, &name);
            others = x_.intersect({others, x_.complement(one)});
        }
        add(extra, others, nullptr);
    }
    o.extras = std::move(extras);
}

ExprId Restriction::within(ExprId e) {
    const auto [known, fresh] = restricted_.try_emplace(e, kEmpty);
    if (fresh) {
        const ExprId out = json_ ? x_.json_within(e, language_) : x_.text_within(e, language_);
        known->second = x_.live(out) ? out : kEmpty;
    }
    return known->second;
}

}  // namespace safegen
