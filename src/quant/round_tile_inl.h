// Rounding a tile of rows in a metric, 16 rows in lanes. Included within the namespace of each set of kernels, after
// its class Lanes: 16 floats with + - * / and
//   Load(const float*), Store(float*), All(float), Min(a, b), Max(a, b), Trunc(a), Sqrt(a), Greater(a, b, yes, no)
// each rounded on its own, and QKV_LANES_ATTR for lambdas. What is done here is then the same in all sets, in every
// lane by itself.

// What one row of a tile is in the metric, and how its search goes on.
class TileRounding {
 public:
  TileRounding(const ErrorMetric& metric, const float* x, int bits)
      : metric_(metric), x_(x), most_(Lanes::All(static_cast<float>((1 << bits) - 1))), square_(Lanes::All(0)) {
    ForChannels(x, [&](size_t i, Lanes before) QKV_LANES_ATTR {
      const Lanes seen = Lanes::Load(x_ + i * kTileTokens) + before;
      seen.Store(seen_.data() + i * kTileTokens);
      square_ = square_ + seen * seen * Lanes::All(metric_.weight[i]);
    });
  }

  // Levels times each row's step, as near as channel by channel goes: each makes up for the errors of those before.
  // Their fit: y'Sl and l'Sl of the rows y and levels l.
  struct Fit {
    Lanes dot, norm;
    Lanes gain() const { return dot * (dot / norm); }
  };
  Fit Round(Lanes step, Lanes zero_code) {
    Fit fit = {Lanes::All(0), Lanes::All(0)};
    const Lanes inverse = Lanes::All(1) / step;
    const Lanes offset = zero_code + Lanes::All(0.5f);
    ForChannels(error_.data(), [&](size_t i, Lanes carried) QKV_LANES_ATTR {
      const Lanes x = Lanes::Load(x_ + i * kTileTokens);
      const Lanes aim = x - carried;
      const Lanes code = Trunc(Min(Max(aim * inverse + offset, Lanes::All(0)), most_));
      const Lanes rounded = (code - zero_code) * step;
      code.Store(codes_.data() + i * kTileTokens);
      (rounded - x).Store(error_.data() + i * kTileTokens);
      // The level and its feedback, in steps: what the metric sees of it.
      const Lanes row = Lanes::Load(seen_.data() + i * kTileTokens);
      const Lanes level = (rounded - aim + row) * inverse;
      const Lanes weighted = level * Lanes::All(metric_.weight[i]);
      fit.dot = fit.dot + row * weighted;
      fit.norm = fit.norm + level * weighted;
    });
    return fit;
  }

  Lanes square() const { return square_; }              // y'Sy
  const float* codes() const { return codes_.data(); }  // of the last Round, [dim, kTileTokens]

 private:
  static constexpr size_t kTogether = 4;

  // Calls step(i, sum over j < i of feedback[i][j] * rows[j]) for each channel i, which may then write rows[i]. Sums
  // are made in the order of j; several channels at a time only keep more of them going.
  template <class Step>
  void ForChannels(const float* rows, const Step& step) {
    for (size_t first = 0; first < metric_.dim; first += kTogether) {
      const float* feedback = metric_.feedback.data() + first * metric_.dim;
      Lanes sums[kTogether];
      for (Lanes& sum : sums) sum = Lanes::All(0);
      for (size_t j = 0; j < first; ++j) {
        const Lanes row = Lanes::Load(rows + j * kTileTokens);
        for (size_t i = 0; i < kTogether; ++i) sums[i] = sums[i] + row * Lanes::All(feedback[i * metric_.dim + j]);
      }
      for (size_t i = 0; i < kTogether; ++i) {
        step(first + i, sums[i]);
        const Lanes row = Lanes::Load(rows + (first + i) * kTileTokens);
        for (size_t k = i + 1; k < kTogether; ++k) {
          sums[k] = sums[k] + row * Lanes::All(feedback[k * metric_.dim + first + i]);
        }
      }
    }
  }

  using Columns = std::array<float, kMaxHeadDim * kTileTokens>;  // [dim, kTileTokens]

  const ErrorMetric& metric_;
  const float* x_;
  const Lanes most_;
  Lanes square_;
  alignas(64) Columns seen_, error_, codes_;
};

// The step and grid with the most gain so far.
struct BestStep {
  Lanes step, zero_code, gain;

  void Try(TileRounding* rounding, Lanes try_step, Lanes try_zero_code) {
    const Lanes try_gain = rounding->Round(try_step, try_zero_code).gain();
    const Lanes least = gain * Lanes::All(kClearlyMore);
    step = Greater(try_gain, least, try_step, step);
    zero_code = Greater(try_gain, least, try_zero_code, zero_code);
    gain = Greater(try_gain, least, try_gain, gain);
  }
};

inline BestStep SearchStep(TileRounding* rounding, Lanes absmax, int bits) {
  const ClipSearch search = MetricClips(bits);
  BestStep best = {Lanes::All(0), Lanes::All(0), Lanes::All(-1)};
  for (const ClipChoice& choice : search.choices) {
    best.Try(rounding, absmax * Lanes::All(choice.share / OutermostLevel(choice.grid, bits)),
             Lanes::All(ZeroCode(choice.grid, bits)));
  }
  const Lanes step = best.step;
  const Lanes zero_code = best.zero_code;
  best.Try(rounding, step * Lanes::All(1 - search.refinement), zero_code);
  best.Try(rounding, step * Lanes::All(1 + search.refinement), zero_code);
  return best;
}

inline void RoundTile(const ErrorMetric& metric, const float* x, size_t rows, int bits, uint8_t* codes,
                      RowScale* scales, float* costs) {
  TileRounding rounding(metric, x, bits);
  Lanes absmax = Lanes::All(kSmallestRow);
  for (size_t i = 0; i < metric.dim; ++i) {
    const Lanes v = Lanes::Load(x + i * kTileTokens);
    absmax = Max(absmax, Max(v, Lanes::All(0) - v));
  }
  const BestStep best = SearchStep(&rounding, absmax, bits);
  const TileRounding::Fit fit = rounding.Round(best.step, best.zero_code);
  // At 2 bits the row's length in the metric is kept: ScalarKernels say why.
  const Lanes step = bits == 2 ? Sqrt(rounding.square() / fit.norm) : fit.dot / fit.norm;
  alignas(64) std::array<float, kTileTokens> steps, zero_codes, squares, dots, norms, largest;
  step.Store(steps.data());
  best.zero_code.Store(zero_codes.data());
  rounding.square().Store(squares.data());
  fit.dot.Store(dots.data());
  fit.norm.Store(norms.data());
  absmax.Store(largest.data());
  for (size_t r = 0; r < rows; ++r) {
    uint8_t* row = codes + r * metric.dim;
    costs[r] = 0;
    if (largest[r] <= kSmallestRow) {
      QuantizeZeroRow(metric.dim, bits, row, scales + r);
      continue;
    }
    const bool rise = zero_codes[r] == ZeroCode(CodeGrid::kMidRise, bits);
    scales[r] = MakeScale(steps[r], rise ? CodeGrid::kMidRise : CodeGrid::kMidTread);
    for (size_t i = 0; i < metric.dim; ++i) row[i] = static_cast<uint8_t>(rounding.codes()[i * kTileTokens + r]);
    const float stored = ScaleStep(scales[r]);
    costs[r] = std::max(0.0f, squares[r] - stored * (2 * dots[r] - stored * norms[r]));
  }
}
