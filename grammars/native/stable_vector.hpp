// A growing array whose elements never move.
#pragma once
#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace safegen {

template <class T>
class StableVector {
public:
    StableVector() = default;
    StableVector(const StableVector&) = delete;
    StableVector& operator=(const StableVector&) = delete;
    ~StableVector() {
        for (size_t i = 0; i < size_; ++i) (*this)[i].~T();
        for (T* chunk : chunks_) std::allocator<T>().deallocate(chunk, kChunk);
    }
    size_t size() const { return size_; }
    T& operator[](size_t i) { return chunks_[i / kChunk][i % kChunk]; }
    const T& operator[](size_t i) const { return chunks_[i / kChunk][i % kChunk]; }
    void push_back(T value) {
        if (size_ == chunks_.size() * kChunk) chunks_.push_back(std::allocator<T>().allocate(kChunk));
        new (&(*this)[size_]) T(std::move(value));
        ++size_;
    }

private:
    static constexpr size_t kChunk = 256;
    std::vector<T*> chunks_;
    size_t size_ = 0;
};

}  // namespace safegen
